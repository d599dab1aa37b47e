// Which sources import which: app → pages → parts → api, and no circles. Types and lazy imports count.

const layers = ["api", "parts", "pages", "app"];

/** A layer imports those below it only. */
const upward = layers.slice(0, -1).map((layer, at) => ({
  name: `${layer} imports no layer above it`,
  severity: "error",
  from: { path: `^src/${layer}/` },
  to: { path: `^src/(${layers.slice(at + 1).join("|")})/` },
}));

/** @type {import("dependency-cruiser").IConfiguration} */
export default {
  forbidden: [
    { name: "no circles", severity: "error", from: {}, to: { circular: true } },
    ...upward,
    {
      name: "a page imports no other page",
      comment: "What two pages need belongs to parts. The registry loads pages by their kind.",
      severity: "error",
      from: { path: "^src/pages/([^/]+)/" },
      to: { path: "^src/pages/[^/]+/", pathNot: "^src/pages/$1/" },
    },
    { name: "every source is in a layer", severity: "error", from: {}, to: { path: "^src/[^/]+$" } },
    { name: "imports resolve", severity: "error", from: {}, to: { couldNotResolve: true } },
  ],
  options: {
    doNotFollow: { path: "node_modules" },
    tsPreCompilationDeps: true,
    tsConfig: { fileName: "tsconfig.json" },
    enhancedResolveOptions: { exportsFields: ["exports"], conditionNames: ["import", "types", "default"] },
  },
};
