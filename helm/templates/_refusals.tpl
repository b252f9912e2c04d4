{{/*
What a schema can't compare. Every fault is told at once.
*/}}
{{- define "omniroute.refusals" -}}
{{- $faults := list -}}
{{- $scaling := .Values.router.autoscaling -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- $faults = append $faults (printf "router.autoscaling.minReplicas (%v) is more than router.autoscaling.maxReplicas (%v): swap them" $scaling.minReplicas $scaling.maxReplicas) -}}
{{- end -}}
{{- if and $scaling.enabled (not $scaling.targetCPUUtilizationPercentage) (not $scaling.targetRequestsInFlight) -}}
{{- $faults = append $faults "router.autoscaling has nothing to scale on: set targetRequestsInFlight or targetCPUUtilizationPercentage" -}}
{{- end -}}
{{- if and $scaling.enabled $scaling.targetCPUUtilizationPercentage (not (dig "requests" "cpu" "" .Values.router.resources)) -}}
{{- $faults = append $faults "router.autoscaling.targetCPUUtilizationPercentage is a share of router.resources.requests.cpu, which is not set" -}}
{{- end -}}
{{- $redis := .Values.redis -}}
{{- $marked := contains "$(REDIS_PASSWORD)" $redis.url -}}
{{- if and $redis.passwordSecret.name (not $marked) -}}
{{- $faults = append $faults "redis.passwordSecret is set, but redis.url does not say where its password goes: write redis://:$(REDIS_PASSWORD)@HOST:PORT/0" -}}
{{- end -}}
{{- if and $marked (not $redis.passwordSecret.name) -}}
{{- $faults = append $faults "redis.url says $(REDIS_PASSWORD), but redis.passwordSecret.name names no Secret that has it" -}}
{{- end -}}
{{- if and $redis.tlsSecret $redis.url (not (hasPrefix "rediss" $redis.url)) -}}
{{- $faults = append $faults "redis.tlsSecret is set, but redis.url is not encrypted: begin it with rediss" -}}
{{- end -}}
{{- if and (contains "/etc/omniroute/redis-tls/" $redis.url) (not $redis.tlsSecret) -}}
{{- $faults = append $faults "redis.url names a file below /etc/omniroute/redis-tls, but redis.tlsSecret names no Secret to mount there" -}}
{{- end -}}
{{- if and $redis.url .Values.networkPolicy.enabled -}}
{{- $hosts := regexReplaceAll "^[a-z+]+://([^@/]*@)?" $redis.url "" | splitList "/" | first -}}
{{- range splitList "," $hosts -}}
{{- $port := regexFind "[0-9]+$" (regexFind ":[0-9]+$" .) -}}
{{- if and $port (not (has $port (toStrings $.Values.networkPolicy.redis.ports))) -}}
{{- $faults = append $faults (printf "redis.url leads to port %s, which networkPolicy.redis.ports does not open: add it there" $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.image.tag .Values.image.digest -}}
{{- $faults = append $faults "image.tag does nothing beside image.digest, which goes before it: set one of them" -}}
{{- end -}}
{{- $own := list "OMNIROUTE_CONFIG" "OMNIROUTE_LISTEN" "OMNIROUTE_ADMIN_LISTEN" "OMNIROUTE_STORE_URL" "OMNIROUTE_NODE_ID" "REDIS_PASSWORD" -}}
{{- range $of := list "router" "coordinator" -}}
{{- range (index $.Values $of).extraEnv -}}
{{- if has .name $own -}}
{{- $faults = append $faults (printf "leave %s out of %s.extraEnv: the chart sets it" .name $of) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* What is in the ConfigMap can be read by whoever may read the namespace. */ -}}
{{- $plain := list -}}
{{- if kindIs "string" (dig "server" "adminToken" nil .Values.config) -}}{{- $plain = append $plain "server.adminToken" -}}{{- end -}}
{{- range $at, $key := .Values.config.apiKeys -}}
{{- if kindIs "string" $key.key -}}{{- $plain = append $plain (printf "apiKeys[%d].key" $at) -}}{{- end -}}
{{- end -}}
{{- range $at, $one := .Values.config.connections -}}
{{- if kindIs "string" $one.apiKey -}}{{- $plain = append $plain (printf "connections[%d].apiKey" $at) -}}{{- end -}}
{{- range $name := list "accessToken" "refreshToken" "clientSecret" -}}
{{- if kindIs "string" (dig "oauth" $name nil $one) -}}{{- $plain = append $plain (printf "connections[%d].oauth.%s" $at $name) -}}{{- end -}}
{{- end -}}
{{- if and (kindIs "string" $one.proxyUrl) (regexMatch "://[^@/]*:[^@/]+@" (toString $one.proxyUrl)) -}}{{- $plain = append $plain (printf "connections[%d].proxyUrl" $at) -}}{{- end -}}
{{- end -}}
{{- range $plain -}}
{{- $faults = append $faults (printf "config.%s is a secret in plain text, and would be in a ConfigMap: put it into a Secret and write {env: NAME} here" .) -}}
{{- end -}}
{{- if not .Values.secrets.existingSecret -}}
{{- $given := list -}}
{{- range .Values.router.extraEnv -}}{{- $given = append $given .name -}}{{- end -}}
{{- $coordinators := list -}}
{{- range .Values.coordinator.extraEnv -}}{{- $coordinators = append $coordinators .name -}}{{- end -}}
{{- range regexFindAll "(?m)\\benv: [A-Za-z_][A-Za-z0-9_]*$" (toYaml .Values.config) -1 | uniq -}}
{{- $name := trimPrefix "env: " . -}}
{{- if not (has $name $given) -}}
{{- $faults = append $faults (printf "config reads the variable %s, and nothing sets it: put it into a Secret and name that in secrets.existingSecret" $name) -}}
{{- else if and (gt (int $.Values.coordinator.replicaCount) 0) (not (has $name $coordinators)) -}}
{{- $faults = append $faults (printf "config reads the variable %s, which router.extraEnv sets but coordinator.extraEnv does not: coordinators read the same config" $name) -}}
{{- end -}}
{{- end -}}
{{- if contains "/etc/omniroute/secrets/" (toYaml .Values.config) -}}
{{- $faults = append $faults "config reads a file below /etc/omniroute/secrets, and secrets.existingSecret names no Secret to mount there" -}}
{{- end -}}
{{- end -}}
{{- if not .Values.config.apiKeys -}}
{{- $faults = append $faults "config.apiKeys is empty, and a router that others can reach takes no client without a key: add one (`router-node keygen` makes it)" -}}
{{- end -}}
{{- if $faults -}}
{{- fail (printf "these values can't work:\n  - %s" (join "\n  - " $faults)) -}}
{{- end -}}
{{- end }}
