// What can be done with an item of a live list, with several, or with the list: always after a confirmation.

import { Link } from "@tanstack/react-router";
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Button, Dialog, Menu, MenuItem, MenuTrigger, Modal, ModalOverlay, Popover } from "react-aria-components";
import { itemAt, type Resource, type Verb } from "../../api/kinds";
import { useMay } from "../../api/rights";
import { State } from "../../parts/card";
import { Confirm, verbOf } from "../../parts/dialogs";
import { counted } from "../../parts/format";
import { quoted, SchemaForm } from "../../parts/schema-form";

type Members = Record<string, unknown>;

const wordOf = (verb: Verb) => verbOf(verb.title);
const isRisky = (verb: Verb) => verb.method === "DELETE" || ["Clear", "Purge"].includes(wordOf(verb));

/** Verbs of one item, verbs that also take several, and verbs of a list. */
export const verbsOf = ({ verbs }: Resource) => verbs.filter(({ place }) => place !== "");
export const verbsOfMany = ({ verbs }: Resource) => verbs.filter(({ place }) => place === "members");
export const verbsOfList = ({ verbs }: Resource, list: string) =>
  verbs.filter((verb) => verb.place === "" && verb.list === list);

export interface Asked {
  verb: Verb;
  names: string[];
  /** Members of the body as the page has them already, as its filters. */
  initial?: Members;
}

/** What is asked for, and what was done last: state of a page with verbs. */
export function useVerbs(resource: Resource, onDone?: (verb: Verb) => void) {
  const queries = useQueryClient();
  const [asked, ask] = useState<Asked | null>(null);
  const [done, setDone] = useState<{ title: string; job?: string } | null>(null);
  const finish = (verb: Verb, title: string, answer: Members | undefined) => {
    ask(null);
    setDone({ title, ...(verb.is_job && { job: String(answer?.id) }) });
    void queries.invalidateQueries();
    onDone?.(verb);
  };
  const dialog = asked && (
    <VerbDialog key={asked.verb.path} resource={resource} {...asked} close={() => ask(null)} onDone={finish} />
  );
  const status = (
    <div role="status">
      {done && (
        <p className="note">
          <State state="done">{done.job ? `${done.title}: started.` : `${done.title}: done.`}</State>{" "}
          {done.job && <Link {...itemAt("jobs", done.job)}>See the job</Link>}
        </p>
      )}
    </div>
  );
  return { ask, dialog, status };
}

function VerbDialog({
  resource,
  verb,
  names,
  initial = {},
  close,
  onDone,
}: Asked & {
  resource: Resource;
  close: () => void;
  onDone: (verb: Verb, title: string, answer: Members | undefined) => void;
}) {
  const [members, setMembers] = useState(initial);
  const [isFilled, setFilled] = useState(verb.model === "");
  const { path, place, parameter, method } = verb;
  const [name = ""] = names;
  const title =
    place === ""
      ? verb.title
      : `${wordOf(verb)} ${names.length > 1 ? counted(names.length, resource.name) : `${resource.name} ${name}`}`;
  if (!isFilled)
    return (
      <ModalOverlay isDismissable isOpen onOpenChange={(open) => !open && close()} className="overlay">
        <Modal className="modal">
          <Dialog className="dialog" aria-label={title}>
            <h2>{title}</h2>
            {verb.text && <p>{quoted(verb.text)}</p>}
            <form
              onSubmit={(event) => {
                event.preventDefault();
                setFilled(true);
              }}>
              <SchemaForm
                schema={{ $ref: `#/components/schemas/${verb.model}` }}
                value={members}
                onChange={setMembers}
                skip={verb.skips}
              />
              <div className="buttons">
                <button type="submit" className="primary">
                  {verb.may_be_dry ? "Show the effect" : "Continue"}
                </button>
                <Button slot="close" className="button">
                  Cancel
                </Button>
              </div>
            </form>
          </Dialog>
        </Modal>
      </ModalOverlay>
    );
  const inBody = {
    ...members,
    ...(place === "member" && { [parameter]: name }),
    ...(place === "members" && { [parameter]: names }),
  };
  return (
    <Confirm
      title={title}
      method={method}
      path={place === "path" ? path.replace(`{${parameter}}`, encodeURIComponent(name)) : path}
      query={place === "query" ? { [parameter]: name } : {}}
      body={Object.keys(inBody).length || verb.model ? inBody : undefined}
      text={verb.text ? quoted(verb.text) : undefined}
      isRisky={isRisky(verb)}
      mayBeDry={verb.may_be_dry}
      isAsync={verb.is_job}
      close={() => (verb.model ? setFilled(false) : close())}
      onDone={(answer) => onDone(verb, title, answer)}
    />
  );
}

/** The menu of an item. */
export function VerbMenu({ verbs: all, name, ask }: { verbs: Verb[]; name: string; ask: (asked: Asked) => void }) {
  const may = useMay();
  const verbs = all.filter(({ right, does }) => may(right, does));
  if (!verbs.length) return null;
  return (
    <MenuTrigger>
      <Button className="button quiet" aria-label={`Do something with ${name}`}>
        ⋯
      </Button>
      <Popover className="popover small-menu" placement="bottom end">
        <Menu
          className="menu"
          aria-label={`Verbs of ${name}`}
          onAction={(at) => ask({ verb: verbs[Number(at)]!, names: [name] })}>
          {verbs.map((verb, at) => (
            <MenuItem key={verb.path} id={at} className={isRisky(verb) ? "item err" : "item"}>
              {`${wordOf(verb)}…`}
            </MenuItem>
          ))}
        </Menu>
      </Popover>
    </MenuTrigger>
  );
}

/** Verbs as buttons: of an item, of those that are selected, or of a list. */
export function VerbButtons({
  verbs,
  names,
  initial,
  suffix = "",
  ask,
}: {
  verbs: Verb[];
  names: string[];
  initial?: Members;
  suffix?: string;
  ask: (asked: Asked) => void;
}) {
  const may = useMay();
  return verbs
    .filter(({ right, does }) => may(right, does))
    .map((verb) => (
      <button key={verb.method + verb.path} type="button" onClick={() => ask({ verb, names, initial })}>
        {names.length ? wordOf(verb) : verb.title}
        {suffix}…
      </button>
    ));
}
