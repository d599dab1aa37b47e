// "Copy as": what the page shows, as a request, a command and a part of a configuration file.

import { Button, Dialog, DialogTrigger, Popover } from "react-aria-components";
import { Command, curl } from "./parts";

interface Copies { path: string; cli: string; hocon?: string; method?: string; body?: unknown }

export function CopyAs({ path, cli, hocon, method, body }: Copies) {
  const forms = [["curl", curl(path, body, method)], ["CLI", cli], ["HOCON", hocon]] as const;
  return (
    <DialogTrigger>
      <Button className="button">Copy as…</Button>
      <Popover className="popover" placement="bottom end">
        <Dialog className="dialog" aria-label="Copy as">
          {forms.map(([name, text]) => text && <section key={name}><h3>{name}</h3><Command text={text} /></section>)}
        </Dialog>
      </Popover>
    </DialogTrigger>
  );
}

const PLAIN = /^[A-Za-z_][\w-]*$/;
const HOCON_KEY = (key: string) => (PLAIN.test(key) ? key : JSON.stringify(key));

/** A value as HOCON; text of several lines in three quotes. */
export function hocon(value: unknown, indent = ""): string {
  const inner = `${indent}  `;
  if (Array.isArray(value)) {
    if (!value.some((one) => typeof one === "object" && one !== null)) return `[${value.map((one) => hocon(one)).join(", ")}]`;
    return `[\n${value.map((one) => `${inner}${hocon(one, inner)}`).join(",\n")}\n${indent}]`;
  }
  if (typeof value === "object" && value !== null) {
    const lines = Object.entries(value).map(([key, one]) => `${inner}${HOCON_KEY(key)}${typeof one === "object" && one !== null && !Array.isArray(one) ? " " : " = "}${hocon(one, inner)}`);
    return lines.length ? `{\n${lines.join("\n")}\n${indent}}` : "{}";
  }
  if (typeof value === "string" && value.includes("\n") && !value.includes('"""')) {
    return `"""${value}${value.endsWith('"') ? " " : ""}"""`;
  }
  return JSON.stringify(value);
}
