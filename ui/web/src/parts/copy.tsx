// What the page shows, to take elsewhere: commands, requests and parts of configuration files to copy, and downloads.

import { useState } from "react";
import { Button, Dialog, DialogTrigger, Popover } from "react-aria-components";
import type { Status } from "../api/client";
import { type Kind, kindOf } from "../api/kinds";
import { useSchemas, withoutDefaults } from "./schema-form";

async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // no clipboard outside of https and localhost
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [shown, setShown] = useState(label);
  const press = async () => {
    setShown((await copy(text)) ? "Copied" : "Select and copy");
    setTimeout(() => setShown(label), 2000);
  };
  return (
    <button type="button" className="quiet" aria-label={`${shown}: ${text}`} onClick={press}>
      {shown}
    </button>
  );
}

export function Command({ text }: { text: string }) {
  const words = text.split(/(\s+)/).map((word, at) =>
    word.trim() ? (
      <span key={at} className="word">
        {word}
      </span>
    ) : (
      word
    ),
  );
  return (
    <div className="command">
      <pre>{words}</pre>
      <CopyButton text={text} />
    </div>
  );
}

/** Text as one word of a shell, without quotes where it needs none. */
export const word = (text: string) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The request as a command; the token comes from the environment, never from the page. */
export function curl(path: string, body?: unknown, method?: string): string {
  const data = body === undefined ? "" : ` -d ${word(JSON.stringify(body))}`;
  const verb = method && !(method === "POST" && data) ? ` -X ${method}` : "";
  const url = word(`${location.origin}/api/v1/${path}`);
  return `curl${verb} -H "Authorization: Bearer $SLUICE_API_TOKEN"${data} ${url}`;
}

/** Have the browser save a file. */
export function download(title: string, kind: string, content: Blob | null) {
  if (!content) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = `${title.toLowerCase().replaceAll(/[ ,]+/g, "-")}.${kind}`;
  link.click();
  URL.revokeObjectURL(link.href);
}

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
  const place = method === "PUT" ? `${kind.api}/${encodeURIComponent(name)}` : kind.api;
  return (
    <CopyAs
      method={method}
      path={place}
      body={body}
      cli={`printf '%s' ${word(JSON.stringify(body))} | sluice ${kind.cli} apply -f -`}
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

export function publishCommand({ listeners }: Status, topic = "meters/1", payload = '{"t": 21.5}'): string {
  const address = listeners.find(({ protocol }) => protocol === "mqtt")?.address ?? "127.0.0.1:1883";
  const colon = address.lastIndexOf(":");
  return `mosquitto_pub -h ${address.slice(0, colon)} -p ${address.slice(colon + 1)} -t ${topic} -m '${payload}'`;
}
