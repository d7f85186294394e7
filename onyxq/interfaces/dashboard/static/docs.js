// The page of the HTTP interface: forms that send requests to this peer, and show the answer as text.
(function () {
  "use strict";
  var SHOWN_MAX = 200000;

  document.getElementById("credential").hidden = false;
  document.querySelectorAll("form.try").forEach(function (form) { form.hidden = false; });

  function unfold() {
    var part = location.hash && document.getElementById(location.hash.slice(1));
    if (part && part.tagName === "DETAILS") { part.open = true; part.scrollIntoView(); }
  }
  unfold();
  window.addEventListener("hashchange", unfold);

  // Path, query, headers and body of the request that a form describes. Empty fields are left out.
  function request(form) {
    var path = form.getAttribute("data-path"), query = new URLSearchParams(), headers = { accept: "application/json" };
    form.querySelectorAll("input[data-in]").forEach(function (field) {
      if (!field.value) return;
      var place = field.getAttribute("data-in");
      if (place === "path") path = path.replace("{" + field.name + "}", encodeURIComponent(field.value));
      else if (place === "query") query.append(field.name, field.value);
      else headers[field.name] = field.value;
    });
    var token = document.getElementById("token").value, body = form.querySelector("textarea");
    if (token) headers.authorization = "Bearer " + token;
    if (body && body.value) headers["content-type"] = body.getAttribute("data-media");
    var text = query.toString();
    return { path: text ? path + "?" + text : path, how: { method: form.getAttribute("data-method"), headers: headers, body: body && body.value ? body.value : undefined, credentials: "omit" } };
  }

  function pretty(text) {
    try { text = JSON.stringify(JSON.parse(text), null, 2); } catch (error) { /* It is shown as it came. */ }
    return text.length > SHOWN_MAX ? text.slice(0, SHOWN_MAX) + "\n…" : text;
  }

  document.addEventListener("submit", function (event) {
    var form = event.target;
    if (!form.matches("form.try")) return;
    event.preventDefault();
    var asked = request(form), method = asked.how.method, said = form.querySelector("[role=status]"), shown = form.querySelector("pre");
    if (method !== "GET" && !window.confirm(method + " " + asked.path + " may change this cluster. Send it?")) return;
    var button = form.querySelector("button"), started = performance.now();
    button.disabled = true;
    said.textContent = method + " " + asked.path + " …";
    fetch(asked.path, asked.how)
      .then(function (answer) {
        return answer.text().then(function (text) {
          said.textContent = method + " " + asked.path + ": " + answer.status + " in " + Math.round(performance.now() - started) + " ms";
          shown.textContent = pretty(text);
          shown.hidden = !text;
        });
      })
      .catch(function (error) { said.textContent = "No answer: " + error.message; shown.hidden = true; })
      .finally(function () { button.disabled = false; });
  });
})();
