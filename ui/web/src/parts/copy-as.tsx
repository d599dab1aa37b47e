// What the page shows, to take elsewhere: as a request, a command, or a part of a configuration file.

import { Button, Dialog, DialogTrigger, Popover } from "react-aria-components";
import { type Kind, kindOf } from "../api/kinds";
import { Command, curl, word } from "./copy";
import { useSchemas, withoutDefaults } from "./schema-form";

interface InFile {
  kind: Kind;
  name: string;
  spec: object;
}
interface Copies {
  path: string;
  cli: string;
  method?: string;
  body?: unknown;
  file?: InFile;
}

export function CopyAs({ path, cli, method, body, file }: Copies) {
  return (
    <DialogTrigger>
      <Button className="button">Copy as…</Button>
      <Popover className="popover" placement="bottom end">
        <Dialog className="dialog" aria-label="Copy as">
          <section>
            <h3>curl</h3>
            <Command text={curl(path, body, method)} />
          </section>
          {cli && (
            <section>
              <h3>CLI</h3>
              <Command text={cli} />
            </section>
          )}
          {file && <Hocon {...file} />}
        </Dialog>
      </Popover>
    </DialogTrigger>
  );
}

/** An object that is about to be saved. */
export function CopySpec({
  kind: path,
  name,
  spec,
  method = "PUT",
}: {
  kind: string;
  name: string;
  spec: object;
  method?: string;
}) {
  const kind = kindOf(path)!;
  const body = { ...spec, [kind.key]: name };
  const place = method !== "POST" || kind.isCreatedByName ? `${kind.api}/${encodeURIComponent(name)}` : kind.api;
  return (
    <CopyAs
      method={method}
      path={place}
      body={body}
      cli={kind.isPatched ? "" : `printf '%s' ${word(JSON.stringify(body))} | sluice ${kind.cli} apply -f -`}
      file={kind.file === null ? undefined : { kind, name, spec }}
    />
  );
}

/** A part of a configuration file, which says nothing that is so by default. */
function Hocon({ kind, name, spec }: InFile) {
  const schema = { $ref: `#/components/schemas/${kind.model}` };
  const schemas = useSchemas(schema);
  if (!schemas) return null;
  const { name: _, ...said } = withoutDefaults(spec, schema, schemas) as Record<string, unknown>;
  const text =
    kind.path === "tables"
      ? `${kind.file} = [ ${hocon({ name, ...said })} ]`
      : `${kind.file}.${HOCON_KEY(name)} ${hocon(said)}`;
  return (
    <section>
      <h3>HOCON</h3>
      <Command text={text} />
    </section>
  );
}

const PLAIN = /^[A-Za-z_][\w-]*$/;
const HOCON_KEY = (key: string) => (PLAIN.test(key) ? key : JSON.stringify(key));

/** A value as HOCON; text of several lines in three quotes. */
function hocon(value: unknown, indent = ""): string {
  const inner = `${indent}  `;
  if (Array.isArray(value)) {
    if (!value.some((one) => typeof one === "object" && one !== null))
      return `[${value.map((one) => hocon(one)).join(", ")}]`;
    return `[\n${value.map((one) => `${inner}${hocon(one, inner)}`).join(",\n")}\n${indent}]`;
  }
  if (typeof value === "object" && value !== null) {
    const lines = Object.entries(value).map(([key, one]) => {
      const sign = typeof one === "object" && one !== null && !Array.isArray(one) ? " " : " = ";
      return `${inner}${HOCON_KEY(key)}${sign}${hocon(one, inner)}`;
    });
    return lines.length ? `{\n${lines.join("\n")}\n${indent}}` : "{}";
  }
  if (typeof value === "string" && value.includes("\n") && !value.includes('"""')) {
    return `"""${value}${value.endsWith('"') ? " " : ""}"""`;
  }
  return JSON.stringify(value);
}
