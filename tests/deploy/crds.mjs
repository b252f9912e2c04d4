// Validates rendered objects of the Gateway API and of the Prometheus operator against the schemas of
// their definitions.
//
//     node crds.mjs FILE...
//
// Each file has one object as JSON. Prints one line a fault and exits 1 if there is any.

import { readFileSync } from "node:fs";
import { HTTPRoute } from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/HTTPRoute";
import { PrometheusRule } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PrometheusRule";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";

const kinds = { HTTPRoute, PrometheusRule, ServiceMonitor };
let faults = 0;
for (const file of process.argv.slice(2)) {
  const object = JSON.parse(readFileSync(file, "utf8"));
  const Kind = kinds[object.kind];
  try {
    if (!Kind || new Kind().apiVersion !== object.apiVersion) {
      throw new Error(`no schema of ${object.apiVersion} ${object.kind}`);
    }
    new Kind(object).validate();
    console.log(`${file}: ${object.kind}: ok`);
  } catch (error) {
    faults += 1;
    console.log(`${file}: ${object.kind}: ${error.message}`);
  }
}
process.exit(faults > 0 || process.argv.length < 3 ? 1 : 0);
