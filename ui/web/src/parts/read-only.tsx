// Objects that pages show but cannot change: a configuration file fixes them, or the user has no right to.

import { createContext, type ReactNode, useContext } from "react";

const FixedBy = createContext<string | null>(null);

/** What is shown of an object that the page cannot change: ``value`` is the file that fixes it, or empty where the
 *  user has no right to. With null it can. */
export const InFile = FixedBy.Provider;

/** Whether the object of the page cannot be changed. */
export const useFixed = () => useContext(FixedBy) !== null;

/** Fields of an object, disabled where it cannot be changed. */
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
