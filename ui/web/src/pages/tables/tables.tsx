// The page of tables of the lakehouse.

import { Link } from "@tanstack/react-router";
import { count } from "../../parts/format";
import type { KindPage } from "../../parts/kind-page";
import { SpecForm } from "../../parts/spec-form";
import { AuditTab } from "./audit";
import { NewTable } from "./create";
import { Health } from "./health";
import { Maintain } from "./maintain";
import { Replay } from "./replay";
import { Rows } from "./rows";
import type { LakeTable } from "./shared";

export const page: KindPage<LakeTable> = {
  cells: {
    "Dead letters": {
      kind: "num",
      show: ({ name, dead_letters }) =>
        dead_letters ? (
          <Link to="/$kind/$name" params={{ kind: "tables", name }} search={{ tab: "rows", letters: true } as never}>
            {count(dead_letters)}
          </Link>
        ) : (
          count(dead_letters)
        ),
    },
  },
  tabs: [
    { title: "Health", show: Health },
    { title: "Rows", show: Rows },
    { title: "Replay", show: Replay },
    { title: "Audit", show: AuditTab },
    { title: "Maintain", show: Maintain },
    {
      title: "Settings",
      show: ({ name, object, etag }) => (
        <SpecForm kind="tables" schema="TableSpec" name={name} object={object} etag={etag} />
      ),
    },
  ],
  create: () => <NewTable />,
};
