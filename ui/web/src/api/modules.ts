// Parts of the dashboard that are loaded when they are needed first. While the broker is away one cannot come: it is
// waited for, and the page stays. A reload would leave nothing but the browser's own page about the connection.

import { type ComponentType, lazy } from "react";
import { linkNow, watchLink } from "./channel";

const NOTICED_MS = 1000; // until a connection that has ended is seen as lost
const AGAIN_MS = 10_000;

/** What ``load`` imports, once the broker is there. Where it still does not come, the server was updated under the page,
 * or the browser remembers that it did not: the page is loaded again, unless another one is open by then. */
export async function whenThere<T>(load: () => Promise<T>): Promise<T> {
  const asked = location.pathname;
  try {
    return await load();
  } catch {
    await new Promise((noticed) => setTimeout(noticed, NOTICED_MS));
    await live();
    try {
      return await load();
    } catch (error) {
      const at = Number(sessionStorage.getItem("sluice.reloaded") ?? 0);
      if (location.pathname !== asked || Date.now() - at < AGAIN_MS) throw error;
      sessionStorage.setItem("sluice.reloaded", String(Date.now()));
      location.reload();
      return new Promise<never>(() => {});
    }
  }
}

/** As React's ``lazy``. */
export const lazyPart = <T extends ComponentType<any>>(load: () => Promise<{ default: T }>) =>
  lazy(() => whenThere(load));

const live = () =>
  new Promise<void>((done) => {
    const look = () => {
      if (["lost", "connecting"].includes(linkNow().state)) return;
      stop();
      done();
    };
    const stop = watchLink(look);
    look();
  });
