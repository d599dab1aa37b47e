// JSON without loss: integers beyond 2^53, which only data of users has, are BigInt, and are written as they were read.

declare global {
  interface BigInt {
    toJSON(): unknown;
  }
  interface JSON {
    rawJSON?(text: string): unknown;
  }
}

// JSON.stringify refuses them otherwise.
BigInt.prototype.toJSON = function () {
  return JSON.rawJSON ? JSON.rawJSON(String(this)) : Number(this);
};

const LARGE = /\d{16}/;

/** The value of a JSON text. */
export function parseJson(text: string): unknown {
  if (!LARGE.test(text)) return JSON.parse(text);
  const exact = (_: string, value: unknown, context?: { source?: string }) =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "")
      ? BigInt(context!.source!)
      : value;
  return JSON.parse(text, exact);
}
