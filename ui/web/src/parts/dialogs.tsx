// Dialogs: one that asks for confirmation of a request, with its effect, and one that a button opens.

import { type ReactNode, useEffect, useState } from "react";
import { Button, Dialog, DialogTrigger, Modal, ModalOverlay } from "react-aria-components";
import { call, type Call, type Effect, Refused, sentence } from "../api/client";
import { Failure } from "./card";
import { EffectView } from "./saving";

/** "Disconnect" of "Disconnect clients", "Take back" of "Take back a change". */
export const verbOf = (title: string) => /^\S+( back)?/.exec(title)![0];

/** Asks what a request would change, shows it, and sends it on confirmation. Without an ``etag``, that of the answer
 *  counts.  A deletion of what others use shows those too, and deletes all of them. ``text`` is what is always so; a
 *  request that cannot be asked for its effect has nothing else to show. With ``drains``, connections may stay. */
export function Confirm({
  title,
  method,
  path,
  body,
  etag,
  query = {},
  text,
  isRisky = method === "DELETE",
  mayBeDry = true,
  isAsync,
  drains = false,
  close,
  onDone,
}: {
  title: string;
  method: string;
  path: string;
  body?: unknown;
  etag?: string;
  query?: Call["query"];
  text?: ReactNode;
  isRisky?: boolean;
  mayBeDry?: boolean;
  isAsync?: boolean;
  drains?: boolean;
  close: () => void;
  onDone?: (answer: Record<string, unknown> | undefined) => void;
}) {
  const [{ effect, seen }, show] = useState<{ effect?: Effect; seen?: string }>({});
  const [says, setSays] = useState("");
  const [cascade, setCascade] = useState<true | undefined>();
  const [drain, setDrain] = useState<true | undefined>();
  const ask = async (cascade?: true) => {
    const answer = await call<Effect>(method, path, { body, etag, query: { ...query, cascade, drain, dry_run: true } });
    show({ effect: answer.body, seen: answer.etag });
  };
  useEffect(() => {
    if (!mayBeDry) return;
    ask()
      .catch((error) => {
        if (method !== "DELETE" || !(error instanceof Refused) || error.problem?.code !== "in_use") throw error;
        setCascade(true);
        return ask(true);
      })
      .catch((error) => setSays(sentence(error)));
  }, [drain]);
  const verb = cascade ? "Delete all" : verbOf(title);
  const go = async () => {
    try {
      const answer = await call(method, path, {
        body,
        etag: etag ?? seen,
        query: { ...query, cascade, drain },
        isAsync,
      });
      close();
      onDone?.(answer.body);
    } catch (error) {
      setSays(sentence(error));
    }
  };
  return (
    <ModalOverlay isDismissable isOpen onOpenChange={(open) => !open && close()} className="overlay">
      <Modal className="modal">
        <Dialog className="dialog" role="alertdialog" aria-label={title}>
          <h2>{title}?</h2>
          {text && <p>{text}</p>}
          {cascade && <p>Other objects use it. They would be deleted too.</p>}
          {effect ? (
            <EffectView effect={effect} />
          ) : (
            mayBeDry &&
            !says && (
              <p className="muted" role="status">
                Asking the server what this changes…
              </p>
            )
          )}
          {drains && (
            <label className="check">
              <input
                type="checkbox"
                checked={drain ?? false}
                onChange={(event) => setDrain(event.target.checked || undefined)}
              />{" "}
              Let connected clients stay until they disconnect
            </label>
          )}
          <Failure>{says}</Failure>
          <div className="buttons">
            <button
              type="button"
              className={isRisky ? "danger" : "primary"}
              disabled={mayBeDry && !effect}
              onClick={() => void go()}>
              {verb}
            </button>
            <Button slot="close" className="button">
              Cancel
            </Button>
          </div>
        </Dialog>
      </Modal>
    </ModalOverlay>
  );
}

/** A button that opens a dialog. */
export function Opens({
  label,
  title,
  children,
}: {
  label: string;
  title: string;
  children: (close: () => void) => ReactNode;
}) {
  return (
    <DialogTrigger>
      <Button className="button">{label}</Button>
      <ModalOverlay isDismissable className="overlay">
        <Modal className="modal">
          <Dialog className="dialog" aria-label={title}>
            {({ close }) => children(close)}
          </Dialog>
        </Modal>
      </ModalOverlay>
    </DialogTrigger>
  );
}
