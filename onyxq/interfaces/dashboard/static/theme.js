// Set the chosen theme before the page is drawn. Without a choice, the theme of the system is used.
(function () {
  "use strict";
  var themes = ["system", "light", "dark"];
  function chosen() {
    try { return themes.indexOf(localStorage.getItem("onyxq-theme")) > 0 ? localStorage.getItem("onyxq-theme") : "system"; }
    catch (error) { return "system"; }
  }
  function apply(theme) {
    if (theme === "system") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", theme);
    var name = document.getElementById("theme-name");
    if (name) name.textContent = theme;
    document.dispatchEvent(new CustomEvent("onyxq-theme"));
  }
  apply(chosen());
  document.addEventListener("DOMContentLoaded", function () {
    var button = document.getElementById("theme");
    if (!button) return;
    button.hidden = false;
    apply(chosen());
    button.addEventListener("click", function () {
      var next = themes[(themes.indexOf(chosen()) + 1) % themes.length];
      try { localStorage.setItem("onyxq-theme", next); } catch (error) { /* The choice is not stored: it ends with the page. */ }
      apply(next);
    });
  });
})();
