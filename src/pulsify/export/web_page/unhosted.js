// Where the page's modules do not load: no module can say so. Browsers load none for a page that is a plain file.

addEventListener("error", ({ target }) => {
  if (target.tagName !== "SCRIPT") return;
  const file = location.protocol === "file:";
  document.getElementById("about").textContent = file
    ? "This page needs a host, browsers load nothing for a page that was opened as a file. In this folder: python -m http.server; then open http://localhost:8000"
    : "A file of this page (.js) is missing, or the host says that it is no JavaScript. Host the whole folder of the export: python -m http.server -d FOLDER";
  document.body.dataset.state = "failed";
}, true);  // errors of loading do not bubble
