"""Access control: verbs of users in addition to those of every kind, and trial decisions about a client."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fastapi import Request
from starlette.responses import Response

from broker.admin.access import AccessService
from broker.auth.user_import import UserImport
from broker.core.objects import Spec
from ui.api.effects import DryRun, effect_of, would_change
from ui.api.models.access import ImportedUsers
from ui.api.models.shapes import Affected
from ui.api.objects import KindRoutes
from ui.api.parameters import AnyName

_MOST_AFFECTED = 1000


def add_users(routes: KindRoutes, access: AccessService) -> None:
    """Add the verbs of users that other kinds do not have."""
    users = access.users

    def disconnected(names: Collection[str]) -> Iterator[Affected]:
        how = "is disconnected: its password no longer works"
        return (
            Affected(kind="client", name=client_id, how=how)
            for client_id in access.clients_of(names)[:_MOST_AFFECTED]
        )

    @routes.ops.post(
        "/users:import",
        "importUsers",
        "Import users",
        answer=ImportedUsers,
        takes_key=True,
        may_be_dry=True,
    )
    async def import_users(body: UserImport, dry_run: DryRun = False) -> ImportedUsers | Spec:
        """Creates or replaces users from hashes of their passwords. Either all are saved, or none. `dry_run` counts the
        users that would be created and replaced, and lists the first 1000 of these and of the clients that would be
        disconnected.
        """
        imported = await access.users_of(body)
        if not dry_run:
            users.adopt(imported)
            return {"imported": len(imported)}
        await would_change(lambda: users.adopt(imported))
        replaced = [
            (user, existing) for user in imported if (existing := users.find(user.name)) is not None
        ]
        affected = [
            Affected(kind="user", name=user.name, how="is replaced")
            for user, _ in replaced[:_MOST_AFFECTED]
        ]
        changed = {user.name for user, existing in replaced if not user.logs_in_like(existing)}
        after = {"created": len(imported) - len(replaced), "replaced": len(replaced)}
        return effect_of(
            "replace" if replaced else "create", None, after, [*affected, *disconnected(changed)]
        )

    @routes.ops.post(
        f"{routes.one}:rotate",
        "rotateUserPassword",
        "Generate a new password for a user",
        answer=routes.kind,
        problems=(404, 409, 412, 422),
        may_be_dry=True,
    )
    async def rotate(name: AnyName, request: Request, dry_run: DryRun = False) -> Response | Spec:
        """Generates a new password, which is in this answer only. The old one no longer works, and clients that are
        connected with it are disconnected. `dry_run` lists the first 1000 of them.
        """
        routes.check(request, name)
        if not dry_run:
            return routes.answered(request, await users.rotate(name))
        await would_change(lambda: users.rotate(name))
        shown = routes.kind.as_spec(users.get(name))
        return effect_of("replace", shown, shown, disconnected([name]))
