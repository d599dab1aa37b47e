"""Examples of bodies and parameters: one small world of meters, which a fresh broker accepts in the order of creation.

The OpenAPI document and the page at ``/docs`` show them; a test sends each of them to a real broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_SQL: Final = 'SELECT payload.t AS t, clientid FROM "meters/#" WHERE payload.t > 20'
_EVENT: Final = {"topic": "meters/1/telemetry", "clientid": "meter-7", "payload": '{"t": 21.5}'}
_MESSAGE: Final = {"topic": "meters/1/telemetry", "payload": '{"t": 21.5}'}
_SOURCE: Final = '{"type": "object", "required": ["t"], "properties": {"t": {"type": "number"}}}'
_NEXT_SOURCE: Final = _SOURCE.replace("}}}", '}, "unit": {"type": "string"}}}')
_VALIDATION: Final = {
    "name": "meters",
    "topics": ["meters/#"],
    "strategy": "all_pass",
    "failure_action": "drop",
    "checks": [{"type": "json", "schema": "meter"}],
    "quarantine": "refused",
}
_TRANSFORM: Final = {
    "name": "site",
    "topics": ["meters/#"],
    "failure_action": "drop",
    "operations": [{"key": "user_property.site", "value": "'berlin'"}],
}
_CONNECTOR: Final = {"name": "plant", "type": "mqtt", "server": "127.0.0.1:11883"}
_ACTION: Final = {
    "name": "alarms",
    "type": "mqtt",
    "connector": "plant",
    "parameters": {"topic": "alarms/${clientid}"},
}
_RECEIVER: Final = {
    "name": "duty",
    "type": "topic",
    "alarms": ["action_*", "table_*"],
    "topic": "duty/${name}",
}
_RECORDS: Final = {
    "name": "orders",
    "type": "mqtt",
    "connector": "plant",
    "parameters": {"topic": "orders/#"},
}

# By operation. The body of a PUT is that of the creation.
BODIES: Final[Mapping[str, Any]] = {
    "createSchema": {"name": "meter", "type": "json", "source": _SOURCE},
    "putSchema": {"type": "json", "source": _NEXT_SOURCE},
    "createSchemaRegistry": {"name": "central", "url": "https://registry.example.com"},
    "createValidation": _VALIDATION,
    "createTransform": _TRANSFORM,
    "createStream": {"name": "telemetry", "topics": ["meters/#"]},
    "createRule": {"name": "warm", "sql": _SQL, "actions": [{"type": "console"}]},
    "createTable": {"name": "telemetry", "stream": "telemetry", "format": "delta"},
    "createAccessRule": {
        "name": "own",
        "permission": "allow",
        "action": "all",
        "topics": ["meters/${username}/#"],
    },
    "createAuthenticator": {"mechanism": "jwt", "secret": "a secret of 32 bytes, or even more"},
    "createRuleSource": {
        "type": "file",
        "rules": [{"permission": "allow", "topics": ["public/#"]}],
    },
    "createRewrite": {
        "name": "old",
        "source_topic": "old/#",
        "re": "^old/(.+)$",
        "dest_topic": "meters/$1",
    },
    "createAutoSubscription": {"name": "mine", "topic": "to/${clientid}", "qos": 1},
    "createAlarmReceiver": _RECEIVER,
    "probeAlarmReceiver": _RECEIVER,
    "createConnector": _CONNECTOR,
    "createAction": _ACTION,
    "createSource": _RECORDS,
    "createListener": {"id": "tcp:plant", "bind": "127.0.0.1:1884", "max_connections": 100},
    "createUser": {"name": "meter-7", "password": "a long password"},
    "createBan": {
        "as": "clientid",
        "who": "meter-9",
        "reason": "sends too much",
        "until": "infinity",
    },
    "createAccount": {
        "name": "ann",
        "role": "operator",
        "topics": ["plant/#"],
        "description": "Ann of the plant",
    },
    "createToken": {"name": "spark", "streams": ["hot"], "description": "the cluster of the plant"},
    "markApplied": {"add": ["rules/warm"], "remove": []},
    "createBackup": {"key": "a long passphrase"},
    "startCapture": {"name": "night", "filter": "meters/#", "max_records": 100},
    "createSecret": {
        "name": "historian",
        "value": "a long password",
        "description": "the plant's historian",
    },
    "createGroup": {"group": "$share/pool/jobs/#", "strategy": "round_robin"},
    "probeConnector": _CONNECTOR,
    "probeAction": _ACTION,
    "probeSource": _RECORDS,
    "putSetting": {"key": "mqtt.max_packet_size", "value": "2MB"},
    "patchSetting": {"value": "3MB"},
    "patchListener": {"max_connections": 200},
    "patchValidation": {"description": "What meters send"},
    "patchTransform": {"description": "Where a meter is"},
    "patchRule": {"description": "Warm meters"},
    "patchConnector": {"description": "The broker of the plant"},
    "patchAction": {"description": "Alarms of warm meters"},
    "patchSource": {"description": "Orders for meters"},
    "reorderAuthenticators": {"order": ["jwt"]},
    "createListenerAuthenticator": {
        "mechanism": "jwt",
        "secret": "a secret of 32 bytes, or even more",
    },
    "replaceListenerAuthenticator": {
        "mechanism": "jwt",
        "secret": "a secret of 32 bytes, or even more",
    },
    "setAuthorizationSettings": {"no_match": "deny", "trusted_client_attributes": ["clientid"]},
    "reorderRuleSources": {"order": ["file", "built_in"]},
    "importUsers": {
        "users": [
            {
                "user_id": "meter-8",
                "password_hash": "1e1ba4cf5bee4cb4fa4d5c1ad6e3d9fd1b5f0a4dc4a2ec2b7e8d8f3b1e0b6e3f",
                "salt": "a1b2c3",
            }
        ],
        "algorithm": "sha256",
    },
    "checkAccess": {
        "client": {"clientid": "c1", "username": "meter-7"},
        "action": "publish",
        "topic": "meters/meter-7/telemetry",
        "qos": 1,
    },
    "publishMessage": {**_MESSAGE, "qos": 1, "retain": True},
    "acknowledgeAlarm": {"note": "the cluster is being moved, until 18:00"},
    "kickClients": {"clientids": ["meter-7"]},
    "clearClients": {"clientids": ["meter-8"]},
    "subscribeClient": {
        "clientid": "meter-7",
        "subscriptions": [{"filter": "public/all", "qos": 1}],
    },
    "unsubscribeClient": {"clientid": "meter-7", "filters": ["public/all"]},
    "purgeSessions": {"older_than_s": 86_400, "dry_run": True},
    "clearRetained": {"filter": "meters/#", "dry_run": True},
    "replayTable": {"from": "2026-01-31T12:00:00Z", "to": "2026-01-31T13:00:00Z"},
    "planStreamReplay": {"to": "mqtt", "topic": "again/${topic}", "rate": 500},
    "replayStream": {"to": "mqtt", "topic": "again/${topic}", "rate": 500},
    "importStreamRecords": '{"topic": "meters/1/telemetry", "payload": "{\\"t\\": 21.5}", "qos": 1}\n',
    "cleanTable": {"older_than": "7d"},
    "expireTable": {"older_than": "7d"},
    "retainTable": {"older_than": "400d"},
    "retypeTable": {"column": "temperature", "type": "double"},
    "reportTable": {"state": "running", "rows": 1200, "dead_letters": 0},
    "putRegistryCompatibility": {"compatibility": "backward"},
    "putSchemaCompatibility": {"compatibility": "full"},
    "checkSchemaChange": {"type": "json", "source": _NEXT_SOURCE},
    "decodeWithRegisteredSchema": {"payload": '{"t": 21.5}'},
    "encodeWithRegisteredSchema": {"value": {"t": 21.5}},
    "validateWithRegisteredSchema": {"value": {"t": 21.5}},
    "inferSchema": {"type": "json", "samples": [{"t": 21.5}, {"t": 22, "unit": "C"}]},
    "backtestRule": {"name": "warm", "sql": _SQL, "stream": "telemetry", "limit": 1000},
    "createRuleTable": {"format": "delta", "follows": "rows"},
    "drainAction": {"timeout_s": 5},
    "drainMachine": {"wait_s": 60, "pause_s": 30},
    "moveCell": {"cell": 1},
    "rebalanceMachines": {"pause_s": 30},
    "redriveDeadLetters": {"limit": 100},
    "takeQuarantineAgain": {"limit": 100},
    "testRule": {"sql": _SQL, "event": _EVENT},
    "testRuleOnEvents": {"sql": _SQL, "events": [_EVENT]},
    "checkRule": {"sql": _SQL},
    "listRuleFields": {"from": ["meters/#"]},
    "testRuleCases": {
        "sql": _SQL,
        "tests": [{"name": "warm", "event": _EVENT, "expect": {"rows": [{"t": 21.5}]}}],
    },
    "formatRule": {"sql": _SQL},
    "explainRule": {"sql": _SQL, "event": _EVENT},
    "renderTemplate": {"template": "${clientid}: ${t}", "row": {"clientid": "meter-7", "t": 21.5}},
    "evaluateVariform": {"expression": "upper(clientid)", "bindings": {"clientid": "meter-7"}},
    "previewTransforms": {"transformations": [_TRANSFORM], "message": _MESSAGE},
    "testValidations": {"validations": [_VALIDATION], "message": _MESSAGE},
    "testRewrites": {"topic": "old/1"},
    "checkSchema": {"type": "json", "source": _SOURCE},
    "decodeWithSchema": {"type": "json", "source": _SOURCE, "payload": '{"t": 21.5}'},
    "encodeWithSchema": {"type": "json", "source": _SOURCE, "value": {"t": 21.5}},
    "validateWithSchema": {"type": "json", "source": _SOURCE, "value": {"t": 21.5}},
    "previewPipeline": {"message": _MESSAGE},
    "signIn": {"token": "TOKEN"},
    "createSchemaBundle": {
        "name": "frame",
        "root_proto_file": "frame.proto",
        "bundle": "@frame.tar.gz",
    },
    "putSchemaBundle": {
        "name": "frame",
        "root_proto_file": "frame.proto",
        "bundle": "@frame.tar.gz",
    },
}

# Parameters that an operation cannot do without, by name; ``{name}`` is the one that was created.
PARAMETERS: Final[Mapping[str, Any]] = {
    "clientid": "meter-7",
    "kind": "rule",
    "mechanism": "jwt",
    "name": "refused",
    "id": "1",
    "topic": "meters/1/telemetry",
    "filter": "meters/#",
    "from": "0",
    "to": "1",
    "version": "1",
    "number": "1",
    "before": "1",
}


def body_of(operation_id: str, created: Mapping[str, Any] | None = None) -> Any:
    """The example of an operation's body. ``created`` is the object of the kind that the examples make."""
    if operation_id in BODIES or created is None:
        return BODIES.get(operation_id)
    return {"order": [name_of(created)]} if operation_id.startswith("reorder") else created


def name_of(created: Mapping[str, Any]) -> str:
    """The name that an object of an example has; objects of some kinds are named by their type."""
    if "as" in created:
        return f"{created['as']}/{created['who']}"
    return str(
        next(
            created[member]
            for member in ("name", "id", "group", "key", "mechanism", "type")
            if member in created
        )
    )
