"""``onyxq task call``: enqueue a call of a function, with arguments from the command line."""

from __future__ import annotations

import inspect
import json
import time
from typing import TYPE_CHECKING, Any

from onyxq.core.errors import BadRequest
from onyxq.interfaces.cli.context import Context
from onyxq.interfaces.cli.live import EXIT_FAILED, ended
from onyxq.system.durations import milliseconds
from onyxq.system.settings import did_you_mean

if TYPE_CHECKING:
    from onyxq.worker.functions import AnyTask


def task_call(context: Context) -> int | None:
    """Enqueue a call of a function and print the task's id; with ``--wait``, its outcome."""
    args = context.args
    function = load_function(args.target)
    context.let_application_read()
    function.app.address = context.given("connect") or function.app.address
    function.app.token = context.text("token") or function.app.token
    given, named = _arguments(function, args.arguments, args.data)
    if args.delay:
        function = function.options(delay_ms=milliseconds(args.delay, field="delay"))
    handle = function.enqueue(*given, **named)
    if not args.wait:
        context.out.result({"id": handle.id, "queue": function.queue, "task": function.name}, handle.id)
        return None
    until = time.monotonic() + milliseconds(args.timeout, field="timeout") / 1000 if args.timeout else None
    task = ended(context, function.app.client, handle, until)
    return None if task["state"] == "completed" else EXIT_FAILED


def load_function(target: str) -> AnyTask:
    """Return the task that ``module:function`` names; raises `BadRequest` that names those of the module."""
    from onyxq.worker import import_module
    from onyxq.worker.functions import TaskFunction

    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        hint = "Write the module, a colon and the function: shop.tasks:send"
        raise BadRequest(f"{target!r} is not MODULE:FUNCTION", field="target", hint=hint)
    module = import_module(module_name, field="target")
    found = getattr(module, name, None)
    if isinstance(found, TaskFunction):
        return found
    known = sorted(one for one, value in vars(module).items() if isinstance(value, TaskFunction))
    problem = f"{target} is not a task" if found is not None else f"{module_name} has no function {name!r}"
    hint = f"The tasks of {module_name} are: {', '.join(known)}." if known else "Decorate it with @app.task."
    raise BadRequest(f"{problem}{did_you_mean(name, known)}", field="target", hint=hint)


def _arguments(function: AnyTask, words: list[str], data: str | None) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call by place and by name; raises `BadRequest`."""
    if data is not None:
        if words:
            raise BadRequest("arguments and --data were both given", field="data")
        return _from_json(data)
    parameters = function.arguments.signature.parameters
    open_ended = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    texts = {name for name, one in parameters.items() if one.annotation in (str, "str")}
    places = [one for one in parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    given: list[Any] = []
    named: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if equals and (name in parameters or (open_ended and name.isidentifier())):
            named[name] = text if name in texts else _value(text)
        elif equals and (near := did_you_mean(name, list(parameters))):
            hint = "If the whole text is an argument, give all arguments with --data '[...]'."
            raise BadRequest(f"there is no argument {name!r}{near}", field="arguments", hint=hint)
        else:
            place = places[len(given)].name if len(given) < len(places) else ""
            given.append(word if place in texts else _value(word))
    return given, named


def _value(text: str) -> Any:
    """Return the JSON that a word is, else the word itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _from_json(data: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"data is not JSON: {error}", field="data") from None
    if isinstance(found, dict):
        return [], found
    if isinstance(found, list):
        return found, {}
    hint = """Write '["ann", 3]' for arguments by place, or '{"to": "ann"}' for arguments by name."""
    raise BadRequest("data must be a list or an object of arguments", field="data", hint=hint)
