{{- define "omniroute.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 43 characters, so that the longest suffix and a pod's hash fit. */}}
{{- define "omniroute.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 43 | trimSuffix "-" }}
{{- else }}
{{- $name := include "omniroute.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 43 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 43 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Takes (list root component). */}}
{{- define "omniroute.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "omniroute.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Takes (list root component). */}}
{{- define "omniroute.labels" -}}
{{- $root := index . 0 -}}
{{ include "omniroute.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
The labels of a pod: without versions, so that a new chart alone replaces none. Takes (list root component).
*/}}
{{- define "omniroute.podLabels" -}}
{{- $root := index . 0 -}}
{{ include "omniroute.selector" . }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "omniroute.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{- define "omniroute.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "omniroute.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* What the chart puts into the configuration goes before what it was given. */}}
{{- define "omniroute.config" -}}
{{- $own := dict "server" (dict
      "listen" "0.0.0.0:8080"
      "adminListen" "0.0.0.0:9090"
      "drainTimeoutMs" (mul .Values.router.drain.seconds 1000)) -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) $own) }}
{{- end }}

{{/* Until the last stream may end, and then what a stop needs for last words, store and log. */}}
{{- define "omniroute.grace" -}}
{{- add .Values.router.drain.endpointsSeconds .Values.router.drain.seconds 15 }}
{{- end }}

{{- define "omniroute.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "omniroute.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Variables of routers and coordinators. Takes (list root extraEnv). */}}
{{- define "omniroute.env" -}}
{{- $root := index . 0 -}}
{{- $redis := $root.Values.redis -}}
env:
  - name: OMNIROUTE_NODE_ID
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  {{- if $redis.passwordSecret.name }}
  - name: REDIS_PASSWORD
    valueFrom:
      secretKeyRef:
        name: {{ $redis.passwordSecret.name }}
        key: {{ $redis.passwordSecret.key }}
  {{- end }}
  - name: OMNIROUTE_STORE_URL
    {{- if $redis.existingSecret }}
    valueFrom:
      secretKeyRef:
        name: {{ $redis.existingSecret }}
        key: {{ $redis.existingSecretKey }}
    {{- else if $redis.embedded.enabled }}
    value: redis://{{ include "omniroute.fullname" $root }}-redis:6379/0
    {{- else }}
    value: {{ $redis.url | quote }}
    {{- end }}
  {{- with index . 1 }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $root.Values.secrets.existingSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end }}

{{- define "omniroute.volumeMounts" -}}
volumeMounts:
  - name: config
    mountPath: /etc/omniroute/config
    readOnly: true
  {{- if .Values.secrets.existingSecret }}
  - name: secrets
    mountPath: /etc/omniroute/secrets
    readOnly: true
  {{- end }}
  {{- if .Values.redis.tlsSecret }}
  - name: redis-tls
    mountPath: /etc/omniroute/redis-tls
    readOnly: true
  {{- end }}
{{- end }}

{{- define "omniroute.volumes" -}}
volumes:
  - name: config
    configMap:
      name: {{ include "omniroute.fullname" . }}
  {{- with .Values.secrets.existingSecret }}
  - name: secrets
    secret:
      secretName: {{ . }}
      defaultMode: 0440
  {{- end }}
  {{- with .Values.redis.tlsSecret }}
  - name: redis-tls
    secret:
      secretName: {{ . }}
      defaultMode: 0440
  {{- end }}
{{- end }}

{{/* What routers' and coordinators' pods have in common. Takes (list root values). */}}
{{- define "omniroute.podCommon" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
serviceAccountName: {{ include "omniroute.serviceAccount" $root }}
automountServiceAccountToken: false
# Else a service of ours would set variables that begin with OMNIROUTE_.
enableServiceLinks: false
securityContext:
  {{- include "omniroute.podSecurity" $root | nindent 2 }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
