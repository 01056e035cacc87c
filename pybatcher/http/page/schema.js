// Parts of JSON schemas as a form wants them.

const MOST_STEPS = 20; // of references to references

// Returns a schema with its references followed and the first of its alternatives taken that is not
// null: a form shows one shape. `type` is one word.
export function unfold(root, schema) {
  let own = schema;
  for (let i = 0; i < MOST_STEPS && own !== null && typeof own === "object"; i++) {
    const others = own.anyOf ?? own.oneOf ?? (own.allOf?.length === 1 ? own.allOf : null);
    let next;
    if (typeof own.$ref === "string") next = pointed(root, own.$ref);
    else if (Array.isArray(others)) next = others.find((one) => one?.type !== "null") ?? others[0];
    else break;
    const { $ref, anyOf, oneOf, allOf, ...rest } = own;
    own = { ...next, ...rest };
  }
  if (own === null || typeof own !== "object") return {};
  if ("const" in own) own = { ...own, enum: [own.const] };
  const type = Array.isArray(own.type) ? own.type.find((one) => one !== "null") : own.type;
  return { ...own, type: type ?? (own.properties ? "object" : undefined) };
}

// What a JSON pointer into the schema itself points to; nothing elsewhere is fetched.
function pointed(root, reference) {
  if (!reference.startsWith("#")) return {};
  const parts = reference.slice(1).split("/").slice(1);
  const keys = parts.map((part) => decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~"));
  let found = root;
  for (const key of keys) found = Object.hasOwn(Object(found), key) ? found[key] : {};
  return found;
}
