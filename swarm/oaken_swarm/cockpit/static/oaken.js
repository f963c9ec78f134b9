// What makes pages live. Each works without any of this.

import { bodies } from "./bodies.js";
import { events } from "./events.js";
import { link } from "./link.js";
import { regions } from "./regions.js";
import { times } from "./times.js";
import { trace } from "./trace.js";

times();
bodies();
trace();
for (const form of document.querySelectorAll("form[data-goes-on]")) {
  setTimeout(() => form.requestSubmit(), 150);
}
const refreshed = regions();
const listed = events();
if (document.body.dataset.reads === "1" && (refreshed || listed)) {
  link({
    events(batch) {
      refreshed?.events(batch);
      listed?.events(batch);
    },
    // Between the page and the stream, or while the server was away, something may have happened.
    again() {
      refreshed?.now();
      listed?.fill();
    },
  });
}
