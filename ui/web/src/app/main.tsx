// The dashboard: its routes.

import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { createRootRoute, createRoute, createRouter, lazyRouteComponent, RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { linkNow } from "../api/channel";
import { Refused } from "../api/client";
import { KINDS, RESOURCES } from "../api/kinds";
import { whenThere } from "../api/modules";
import { overviewSearch } from "../parts/ranges";
import { topicSearch } from "../parts/topic-search";
import { Shell } from "./shell";
import "./app.css";

/** Pages are loaded when they are opened first. */
const page = <M extends Record<string, unknown>, N extends keyof M>(load: () => Promise<M>, name: N) =>
  lazyRouteComponent(() => whenThere(load), name);
const NotFound = page(() => import("../pages/objects/detail"), "NotFound");
const ListPage = page(() => import("../pages/objects/list"), "ListPage");
const NewPage = page(() => import("../pages/objects/detail"), "NewPage");
const ObjectPage = page(() => import("../pages/objects/detail"), "ObjectPage");

const root = createRootRoute({
  component: Shell,
  notFoundComponent: NotFound,
  validateSearch: ({ tz }: Record<string, unknown>): { tz?: string } => (typeof tz === "string" ? { tz } : {}),
});
const start = createRoute({
  getParentRoute: () => root,
  path: "/",
  component: page(() => import("../pages/start/start"), "Start"),
});
const overview = createRoute({
  getParentRoute: () => root,
  path: "/overview",
  component: page(() => import("../pages/overview/overview"), "Overview"),
  validateSearch: overviewSearch,
});
const topics = createRoute({
  getParentRoute: () => root,
  path: "/topics",
  component: page(() => import("../pages/topics/topics"), "Topics"),
  validateSearch: topicSearch,
});
const mqtt = createRoute({
  getParentRoute: () => root,
  path: "/mqtt-client",
  component: page(() => import("../pages/mqtt/mqtt"), "MqttPage"),
});
const list = createRoute({ getParentRoute: () => root, path: "/$kind", component: ListPage });
const create = createRoute({ getParentRoute: () => root, path: "/new/$kind", component: NewPage });
const object = createRoute({ getParentRoute: () => root, path: "/$kind/$name", component: ObjectPage });
/** Pages of kinds and resources whose paths have two parts; links to them are not typed. */
const deeper = [...KINDS, ...RESOURCES]
  .filter(({ path }) => path.includes("/"))
  .flatMap(({ path }) => [
    createRoute({ getParentRoute: () => root, path: `/${path}`, component: () => <ListPage path={path} /> }),
    createRoute({ getParentRoute: () => root, path: `/new/${path}`, component: () => <NewPage path={path} /> }),
    createRoute({ getParentRoute: () => root, path: `/${path}/$name`, component: () => <ObjectPage path={path} /> }),
  ]);
const router = createRouter({
  routeTree: root.addChildren([start, overview, topics, mqtt, create, list, object, ...(deeper as unknown as [])]),
  defaultPreload: false,
  scrollRestoration: true,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      retry: (times, error) => !(error instanceof Refused) && times < 3 && linkNow().state !== "paused",
      retryDelay: 1000,
      networkMode: "always",
      refetchOnWindowFocus: "always",
    },
  },
});

const place = document.getElementById("root");
if (place) {
  createRoot(place).render(
    <StrictMode>
      <QueryClientProvider client={queries}>
        <RouterProvider router={router} />
      </QueryClientProvider>
    </StrictMode>,
  );
}
