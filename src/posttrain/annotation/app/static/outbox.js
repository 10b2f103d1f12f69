// Sends answers that had not arrived when their pages were closed, from whatever page of ours is opened next.
"use strict";
{
  const { user, csrf } = document.body.dataset;
  const mine = `pending:${user}:`;
  const here = document.getElementById("work")?.getAttribute("action");  // that page sends its own
  let busy = false;

  function tell(words, path) {
    const line = document.createElement("p"), link = document.createElement("a");
    line.className = "notice";
    line.role = "status";
    link.href = path.replace(/\/say$/, "");
    link.textContent = "Look at it.";
    line.append(`${words} `, link);
    document.querySelector("main").prepend(line);
  }

  async function sendOne(path) {
    const kept = localStorage.getItem(mine + path);
    if (kept === null) return;  // another page of ours has sent it meanwhile
    const fields = JSON.parse(kept);
    const body = new URLSearchParams({ ...fields, csrf });
    const response = await fetch(path, { method: "POST", headers: { accept: "application/json" }, body, redirect: "error" });
    if (response.status >= 500 || [401, 403, 429].includes(response.status)) throw new Error("later");
    if (localStorage.getItem(mine + path) === kept) localStorage.removeItem(mine + path);
    if (response.ok) localStorage.removeItem(`draft:${user}:${path}:${fields.version}`);
    const found = await response.json().catch(() => ({}));
    tell(response.ok ? "An answer that had not arrived is saved now." : `An answer was not saved: ${found.error || response.status}.`, path);
  }

  async function sendAll() {
    if (busy) return;
    busy = true;
    try {
      const paths = Object.keys(localStorage).filter((key) => key.startsWith(mine)).map((key) => key.slice(mine.length));
      for (const path of paths) if (path !== here) await sendOne(path);
    } catch {
      setTimeout(sendAll, 5000);  // no connection, nobody logged in, or a store that cannot be read
    }
    busy = false;
  }

  addEventListener("online", sendAll);
  sendAll();
}
