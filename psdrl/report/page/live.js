// Asks the server of `psdrl report --watch` for its stamp, and loads the page again when there is a new one.
let stamp = null;
setInterval(async () => {
  const live = document.getElementById("live");
  try {
    const now = await (await fetch("stamp", { cache: "no-store" })).text();
    if (stamp !== null && now !== stamp) location.reload();
    stamp = now;
    live.textContent = "Live: this page loads itself again when runs go on.";
  } catch {
    live.textContent = "psdrl report --watch has ended: this page is as it was then.";
  }
}, 2000);
