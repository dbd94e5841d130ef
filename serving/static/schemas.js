// JSON schemas in words: the type of a value, the fields of a record.
// Knows the parts of JSON Schema that this service's description uses.

const PLAIN = { string: "text", integer: "whole number", number: "number", boolean: "true or false", null: "null", object: "object", array: "list" };

export function resolve(schema, api) {
  const name = schema?.$ref?.split("/").at(-1);
  return name ? (api.components?.schemas?.[name] ?? {}) : (schema ?? {});
}

export function kindOf(schema, api) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const several = schema.anyOf ?? schema.oneOf;
  if (several) return [...new Set(several.map((each) => kindOf(each, api)))].join(" or ");
  if (schema.allOf?.length === 1) return kindOf(schema.allOf[0], api);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${kindOf(schema.items ?? {}, api)}${sizes(schema)}`;
  if (schema.type === "object" && schema.additionalProperties?.type) return `object of ${kindOf(schema.additionalProperties, api)}`;
  if (schema.properties && schema.title) return schema.title;
  return PLAIN[schema.type] ?? "anything";
}

function sizes({ minItems, maxItems }) {
  if (minItems === undefined && maxItems === undefined) return "";
  return maxItems === undefined ? ` (${minItems} or more)` : ` (${minItems ?? 0} to ${maxItems.toLocaleString("en-GB")})`;
}

export function fields(schema, api) {
  const { properties = {}, required = [] } = resolve(schema, api);
  return Object.entries(properties).map(([name, field]) => ({
    name,
    kind: kindOf(field, api),
    words: [field.description, bounds(field), required.includes(name) ? "Required." : unless(field)].filter(Boolean).join(" "),
  }));
}

function bounds(field) {
  const known = [field, ...(field.anyOf ?? [])];
  const low = known.map((each) => each.minimum ?? each.exclusiveMinimum).find((value) => value !== undefined);
  const high = known.map((each) => each.maximum ?? each.exclusiveMaximum).find((value) => value !== undefined);
  if (low !== undefined && high !== undefined) return `From ${low} to ${high}.`;
  if (low !== undefined) return `At least ${low}.`;
  return high === undefined ? "" : `At most ${high}.`;
}

const unless = (field) => (field.default === undefined || field.default === null ? "" : `Without it: ${JSON.stringify(field.default)}.`);
