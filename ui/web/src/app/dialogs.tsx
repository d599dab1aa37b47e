// Preferences and the list of keys, which open over the page.

import { useNavigate, useSearch } from "@tanstack/react-router";
import type { RefObject } from "react";
import { Button, Dialog, Modal, ModalOverlay, Popover } from "react-aria-components";
import { signOut } from "../api/client";
import { useMe } from "../api/rights";
import { prefer, type Theme, usePreferences } from "../parts/preferences";
import { timeZoneName, TIME_ZONES } from "../parts/time";
import { PAGES } from "./pages";

export function SettingsDialog({
  place,
  close,
  isIn,
  showHelp,
}: {
  place: RefObject<HTMLButtonElement | null>;
  close: () => void;
  isIn: boolean;
  showHelp: () => void;
}) {
  const { theme, zone, keys } = usePreferences();
  const me = useMe(isIn);
  const { tz } = useSearch({ strict: false }) as { tz?: string };
  const navigate = useNavigate();
  const leave = async () => {
    await signOut().catch(() => null);
    location.reload(); // nothing that was shown is kept
  };
  const chooseTimeZone = (chosen: string) => {
    prefer({ zone: chosen });
    void navigate({
      to: ".",
      search: (known: object) => ({ ...known, tz: chosen === "browser" ? undefined : chosen }),
    } as never);
  };
  const chosenTimeZone = tz ?? zone;
  return (
    <Popover
      className="popover"
      placement="bottom end"
      triggerRef={place}
      isOpen
      onOpenChange={(open) => !open && close()}>
      <Dialog className="dialog settings" aria-label="Settings">
        {me && (
          <p className="muted small">
            Signed in as {me.name}
            {me.role && me.role !== me.name && ` (${me.role})`}
          </p>
        )}
        <label>
          Colours
          <select value={theme} onChange={(event) => prefer({ theme: event.target.value as Theme })}>
            <option value="system">As the system</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </select>
        </label>
        <label>
          Time zone
          <select value={chosenTimeZone} onChange={(event) => chooseTimeZone(event.target.value)}>
            {[...new Set([...TIME_ZONES, chosenTimeZone])].map((one) => (
              <option key={one} value={one}>
                {one === "browser" ? `Browser (${timeZoneName(one)})` : one}
              </option>
            ))}
          </select>
        </label>
        <label className="check">
          <input type="checkbox" checked={keys} onChange={(event) => prefer({ keys: event.target.checked })} />{" "}
          Shortcuts of single keys
        </label>
        <div className="buttons">
          <Button slot="close" className="button" onPress={showHelp}>
            Keyboard
          </Button>
          {isIn && (
            <Button slot="close" className="button" onPress={leave}>
              Sign out
            </Button>
          )}
        </div>
      </Dialog>
    </Popover>
  );
}

const SHORTCUTS = [
  ["Ctrl K", "Find"],
  ["?", "This help"],
  ...PAGES.filter(({ key }) => key).map(({ title, key }) => [`g ${key}`, `Go to ${title}`]),
  ["Esc", "Close"],
];

export function Help({ close }: { close: () => void }) {
  return (
    <ModalOverlay isDismissable isOpen onOpenChange={(open) => !open && close()} className="overlay">
      <Modal className="modal">
        <Dialog className="dialog" aria-label="Keyboard">
          <h2>Keyboard</h2>
          <dl className="keys">
            {SHORTCUTS.map(([keys, does]) => (
              <div key={keys}>
                <dt>
                  <kbd>{keys}</kbd>
                </dt>
                <dd>{does}</dd>
              </div>
            ))}
          </dl>
          <Button slot="close" className="button">
            Close
          </Button>
        </Dialog>
      </Modal>
    </ModalOverlay>
  );
}
