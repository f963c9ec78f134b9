// One for all tabs of a browser: it opens only six connections to a server, and one is enough for this.

import { read } from "./source.js";

const tabs = new Set();
let state = null;

onconnect = ({ ports: [port] }) => {
  tabs.add(port);
  port.onmessage = ({ data }) => {
    if (data === "bye") tabs.delete(port);
  };
  if (state) port.postMessage({ state });
};

read((told) => {
  state = told.state ?? state;
  for (const port of tabs) port.postMessage(told);
}, new AbortController().signal);
