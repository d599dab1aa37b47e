// Objects that a configuration file fixes, which pages show but cannot change.

import { createContext, type ReactNode, useContext } from "react";

const FixedBy = createContext<string | null>(null);

/** What is shown of an object that a file fixes, which the page cannot change. Without ``value`` there is no file. */
export const InFile = FixedBy.Provider;

/** Whether a file fixes the object of the page. */
export const useFixed = () => useContext(FixedBy) !== null;

/** Fields of an object, disabled where a file fixes it. */
export const Changeable = ({ children }: { children: ReactNode }) => (
  <fieldset className="changeable" disabled={useFixed()}>
    {children}
  </fieldset>
);

export const ReadOnly = ({ file }: { file: string }) => (
  <>
    Read-only: the file <code>{file}</code> fixes it. Change it there, then run <code>sluice config reload</code>.
  </>
);
