// What MQTT.js is asked to do at a broker: node mqttjs_exchange.js URL VERSION. Prints what it saw, as JSON.
const mqtt = require("mqtt");
const [url, version] = [process.argv[2], Number(process.argv[3])];
const is5 = version === 5;
const id = `js-${version}`;

function options(clientId, more) {
  const session = is5 ? { properties: { sessionExpiryInterval: 600 } } : {};
  const protocolId = version === 3 ? "MQIsdp" : "MQTT";
  return { clientId, protocolId, protocolVersion: version, clean: false, reconnectPeriod: 0, connectTimeout: 10000, ...session, ...more };
}

// The next so many messages, in the order in which they come.
function messages(client, count) {
  return new Promise((resolve) => {
    const found = [];
    client.on("message", function take(topic, payload, packet) {
      found.push({ topic, payload: payload.toString(), qos: packet.qos, retain: packet.retain, properties: packet.properties });
      if (found.length === count) {
        client.removeListener("message", take);
        resolve(found);
      }
    });
  });
}

async function main() {
  const seen = {};
  const publisher = await mqtt.connectAsync(url, options(`${id}-publisher`, { clean: true }));
  await publisher.publishAsync(`${id}/kept`, "retained", { qos: 1, retain: true });

  const subscriber = await mqtt.connectAsync(url, options(id));
  let coming = messages(subscriber, 4);
  const granted = await subscriber.subscribeAsync({ [`${id}/#`]: { qos: 2 } });
  seen.granted = granted.map((one) => one.qos);
  const properties = is5 ? { userProperties: { a: ["1", "2"] }, contentType: "text/plain", correlationData: Buffer.from("c") } : undefined;
  for (const qos of [0, 1, 2]) {
    await publisher.publishAsync(`${id}/live/${qos}`, `grüße ${qos}`, { qos, properties });
  }
  seen.messages = await coming;

  await subscriber.endAsync();
  for (let number = 0; number < 5; number++) {
    await publisher.publishAsync(`${id}/away`, String(number), { qos: 1 });
  }
  const again = mqtt.connect(url, options(id));
  coming = messages(again, 5);
  seen.sessionPresent = await new Promise((resolve) => again.on("connect", (connack) => resolve(connack.sessionPresent)));
  seen.away = (await coming).map((one) => one.payload);
  await again.unsubscribeAsync(`${id}/#`);
  await publisher.publishAsync(`${id}/kept`, "", { qos: 1, retain: true });

  const large = "x".repeat(200000);
  coming = messages(again, 1);
  await again.subscribeAsync(`${id}-large`, { qos: 1 });
  await publisher.publishAsync(`${id}-large`, large, { qos: 1 });
  seen.large = (await coming)[0].payload === large;
  await Promise.all([again.endAsync(), publisher.endAsync()]);
  console.log(JSON.stringify(seen));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
