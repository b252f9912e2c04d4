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
{{- if not .Values.secrets.existingSecret -}}
{{- $given := list -}}
{{- range .Values.router.extraEnv -}}{{- $given = append $given .name -}}{{- end -}}
{{- range regexFindAll "(?m)\\benv: [A-Z][A-Z0-9_]*$" (toYaml .Values.config) -1 | uniq -}}
{{- $name := trimPrefix "env: " . -}}
{{- if not (has $name $given) -}}
{{- $faults = append $faults (printf "config reads the variable %s, and nothing sets it: put it into a Secret and name that in secrets.existingSecret" $name) -}}
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
