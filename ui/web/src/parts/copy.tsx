// Texts to copy, and downloads.

import { useState } from "react";
import type { Status } from "../api/client";

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

export function publishCommand({ listeners }: Status, topic = "meters/1", payload = '{"t": 21.5}'): string {
  const address = listeners.find(({ protocol }) => protocol === "mqtt")?.address ?? "127.0.0.1:1883";
  const colon = address.lastIndexOf(":");
  return `mosquitto_pub -h ${address.slice(0, colon)} -p ${address.slice(colon + 1)} -t ${topic} -m '${payload}'`;
}
