// Makes a part of the page like another one with as few changes as it takes, so that what one reads, has marked or opened stays.

export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(document.importNode(fresh, true));
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.localName === "time" && old.dateTime === fresh.dateTime) return; // written anew by another hand
  if (old.localName === "details" && old.dataset.body && old.dataset.body === fresh.dataset.body) {
    const size = old.querySelector("summary").textContent === fresh.querySelector("summary").textContent;
    if (size) return; // what was loaded into it is still right
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" && old.localName === "details")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  children(old, fresh);
}

function children(old, fresh) {
  const keyed = new Map();
  for (const child of old.children) if (key(child)) keyed.set(key(child), child);
  let next = old.firstChild;
  for (const wanted of fresh.childNodes) {
    const name = key(wanted);
    let found = name ? keyed.get(name) : null;
    if (!name && next && !key(next) && next.nodeName === wanted.nodeName) found = next;
    if (!found) {
      old.insertBefore(document.importNode(wanted, true), next);
      continue;
    }
    if (found === next) next = next.nextSibling;
    else old.insertBefore(found, next);
    morph(found, wanted);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

export function key(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id || null : null;
}
