"""Tokens and the peers' secret from files and settings, and errors in these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onyxq.access.credential_files import load_access
from onyxq.access.grants import Access, Pace, Token, digest_of
from onyxq.errors import BadRequest, Overloaded, Unauthorized
from onyxq.interfaces.cli.main import run
from onyxq.system.settings import SECRET, load

GOOD = "a token of some length"
HASHED = digest_of(GOOD).hex()


def written(directory: Path, text: str, *, mode: int = 0o600) -> str:
    """A file with this text."""
    path = directory / "access.toml"
    path.write_text(text, "utf-8")
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("key", [f'token = "{GOOD}"', f'sha256 = "{HASHED}"', f'sha256 = "{HASHED.upper()}"'])
def test_a_file_gives_tokens_their_roles(tmp_path: Path, key: str) -> None:
    """By the token or by its digest; a role may be for a prefix."""
    text = (
        f'peer_secret = "what peers show each other"\n[[tokens]]\n{key}\nroles = ["produce:a.", "produce:b.", "read"]'
    )
    access = load_access(written(tmp_path, text))
    grants = access.of_token(GOOD)
    assert grants.everywhere("read") and not grants.everywhere("produce") and not grants.has("consume")
    assert [grants.on("produce", queue) for queue in ("a.x", "b.", "c", "a", "")] == [True, True, False, False, False]
    with pytest.raises(Unauthorized):
        access.of_token(GOOD + " ")
    access.check_peer("what peers show each other")
    with pytest.raises(Unauthorized):
        access.check_peer(GOOD)


def test_a_line_gives_tokens_their_roles() -> None:
    """The setting is for environments without files."""
    access = load_access(tokens=f"sha256:{HASHED}=read+consume:a. another-token-here=admin")
    assert access.of_token(GOOD).prefixes == {"consume": ("a.",), "read": ("",)}
    assert access.of_token("another-token-here").everywhere("consume")
    assert not load_access()


def test_no_secret_is_shown_by_what_holds_it(tmp_path: Path) -> None:
    """This holds for tokens, their digests, and the peers' secret."""
    access = load_access(written(tmp_path, f'peer_secret = "{GOOD}!"\n[[tokens]]\ntoken="{GOOD}"\nroles=["read"]'))
    shown = repr(access)
    assert GOOD not in shown and HASHED not in shown and repr(digest_of(GOOD)) not in shown


def test_a_token_has_a_pace() -> None:
    """A second's worth is allowed at once, then the rate applies; one node counts all connections."""
    pace = Pace(10)
    for _ in range(10):
        pace.take(100.0)
    with pytest.raises(Overloaded):
        pace.take(100.05)
    for _ in range(5):
        pace.take(100.5)
    with pytest.raises(Overloaded):
        pace.take(100.55)
    for _ in range(10):
        pace.take(1_000.0)
    with pytest.raises(Overloaded):
        pace.take(1_000.0)


TOKEN = f'[[tokens]]\ntoken = "{GOOD}"\nroles = ["read"]\n'


def test_the_secret_of_the_settings_counts_before_that_of_the_file(tmp_path: Path) -> None:
    """Otherwise a peer would use another secret than its settings name."""
    file = written(tmp_path, f'peer_secret = "the secret of the file"\n{TOKEN}')
    access = load_access(file, peer_secret="the secret of the settings")
    access.check_peer("the secret of the settings")
    with pytest.raises(Unauthorized):
        access.check_peer("the secret of the file")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("tokens = 1", "access"),
        ("colour = 1", "access"),
        ("[[tokens]]\nroles = ['read']", "access"),
        (TOKEN + f'sha256 = "{HASHED}"', "access"),
        (TOKEN + "colour = 1", "access"),
        (f'[[tokens]]\ntoken = "{GOOD}"', "access"),
        (f'[[tokens]]\ntoken = "{GOOD}"\nroles = []', "tokens"),
        (f'[[tokens]]\ntoken = "{GOOD}"\nroles = ["root"]', "tokens"),
        (f'[[tokens]]\ntoken = "{GOOD}"\nroles = ["read:"]', "tokens"),
        ('[[tokens]]\ntoken = "short"\nroles = ["read"]', "tokens"),
        ('[[tokens]]\nsha256 = "abc"\nroles = ["read"]', "tokens"),
        ("[[tokens]]\ntoken = 5\nroles = ['read']", "access"),
        (TOKEN + TOKEN, "tokens"),
        (TOKEN + "rate = 0", "access"),
        (TOKEN + 'rate = "many"', "access"),
        (f'peer_secret = "short"\n{TOKEN}', "peer_secret"),
        ('peer_secret = "long enough for that"', "tokens"),
        ("no toml", "access"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, field: str) -> None:
    """A mistake must not allow access, and no message repeats a secret."""
    with pytest.raises(BadRequest) as raised:
        load_access(written(tmp_path, text))
    assert raised.value.field == field and GOOD not in raised.value.message


def test_a_line_and_a_file_give_their_tokens_together(tmp_path: Path) -> None:
    """Each token has its own roles; a token in both is given twice."""
    file = written(tmp_path, TOKEN)
    access = load_access(file, tokens="another-token-here=consume:a.")
    assert access.of_token(GOOD).prefixes == {"read": ("",)}
    assert access.of_token("another-token-here").prefixes == {"consume": ("a.",)}
    with pytest.raises(BadRequest, match="given twice"):
        load_access(file, tokens=f"sha256:{HASHED}=consume")


@pytest.mark.parametrize("tokens", ["short=read", GOOD, f"{GOOD.replace(' ', '-')}=", "sha256:12=read", "=read"])
def test_what_is_wrong_in_a_line_is_named(tokens: str) -> None:
    """The error has its place and does not repeat it."""
    with pytest.raises(BadRequest) as raised:
        load_access(tokens=tokens)
    assert raised.value.field == "tokens" and tokens not in raised.value.message


def test_secrets_are_not_read_from_files_of_everybody(tmp_path: Path) -> None:
    """Other users may neither read nor write the access file and the settings file."""
    for mode in (0o604, 0o602):
        with pytest.raises(BadRequest, match="all users of this machine"):
            load_access(written(tmp_path, TOKEN, mode=mode))
    with pytest.raises(BadRequest, match="No such file"):
        load_access(str(tmp_path / "none.toml"))
    for text, mode, fine in (
        ('peer_secret = "s"', 0o644, False),
        ('peer_secret = "s"', 0o640, True),
        ("", 0o644, True),
    ):
        path = written(tmp_path, text, mode=mode)
        if fine:
            load({}, path)
        else:
            with pytest.raises(BadRequest, match="all users"):
                load({}, path)


def test_every_secret_setting_is_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``config show`` and its JSON."""
    lines: list[Any] = [f'{name} = "do not show this"' for name in SECRET]
    path = written(tmp_path, "\n".join(lines))
    for more in ([], ["--json"]):
        assert run(["config", "show", "--config", path, *more]) == 0
        shown = capsys.readouterr().out
        assert "do not show" not in shown and shown.count("(hidden)") == len(SECRET)


def test_a_token_that_stays_goes_on_at_its_pace(tmp_path: Path) -> None:
    """Otherwise reading the file again would allow more than its rate; another rate starts again."""

    def read(rate: int, name: str = "x") -> Access:
        text = f'[[tokens]]\nname = "{name}"\ntoken = "{GOOD}"\nroles = ["read"]\nrate = {rate}\n'
        return load_access(written(tmp_path, text))

    access = read(1)
    used = access.of_token(GOOD).pace
    assert used is not None
    used.take(0.0)
    access.renew(read(1, name="y"))
    assert access.of_token(GOOD).pace is used and access.of_token(GOOD).name == "y"
    access.renew(read(2))
    other = access.of_token(GOOD).pace
    assert other is not None and other.rate == 2


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (Access(), "tokens"),
        (Access((Token.of(GOOD, "t", ["read"]),), "another secret"), "peer_secret"),
    ],
)
def test_what_is_fixed_for_a_peer_s_life_is_not_renewed(other: Access, field: str) -> None:
    """This is whether tokens are required, and the peers' secret; the tokens stay unchanged."""
    access = Access((Token.of("another-token-here", "t", ["read"]),), "the peers' secret")
    with pytest.raises(BadRequest) as raised:
        access.renew(other)
    assert raised.value.field == field and access.of_token("another-token-here")
