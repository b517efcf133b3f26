{{/* What every Headrace pod and container has. */}}

{{- define "headrace.pod" -}}
serviceAccountName: {{ include "headrace.serviceAccountName" . }}
automountServiceAccountToken: false
# Kubernetes would set HEADRACE_..._PORT for Services, and the services read their settings from HEADRACE_*.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Pods of frontend, gateway, router and placement. */}}
{{- define "headrace.control.pod" -}}
{{ include "headrace.pod" . }}
terminationGracePeriodSeconds: {{ include "headrace.terminationSeconds" . }}
{{- with .Values.control }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
volumes:
  {{- include "headrace.volumes" . | nindent 2 }}
  - name: cache
    emptyDir: {}
{{- end }}

{{/* Drains end before the kubelet's patience does; the rest is for closing. */}}
{{- define "headrace.terminationSeconds" -}}
{{- $config := include "headrace.config" . | fromYaml -}}
{{- add .Values.shutdown.preStopSeconds (ceil $config.drain_s) 15 -}}
{{- end }}

{{- define "headrace.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "headrace.controlImage" -}}
{{ .Values.image.control }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* A pod leaves its Services before its process stops listening. */}}
{{- define "headrace.preStop" -}}
{{- with .Values.shutdown.preStopSeconds -}}
lifecycle:
  preStop:
    exec:
      command: [sleep, {{ . | quote }}]
{{- end }}
{{- end }}

{{- define "headrace.configChecksum" -}}
checksum/config: {{ include "headrace.config" . | sha256sum }}
{{- end }}

{{- define "headrace.volumes" -}}
- name: config
  configMap:
    name: {{ include "headrace.fullname" . }}
- name: tmp
  emptyDir: {}
{{- end }}

{{- define "headrace.volumeMounts" -}}
- name: config
  mountPath: /etc/headrace
  readOnly: true
- name: cache
  mountPath: /var/cache/headrace
- name: tmp
  mountPath: /tmp
{{- end }}

{{/* Libraries keep compiled kernels and the like under HOME. */}}
{{- define "headrace.env" -}}
- name: HOME
  value: /var/cache/headrace
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Secrets of those who meet in Redis: router, workers, placement. */}}
{{- define "headrace.env.fleet" -}}
- name: HEADRACE_WORKER_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ include "headrace.secretName" . }}, key: worker-token}
{{- if .Values.redis.enabled }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ include "headrace.secretName" . }}, key: redis-password}
- name: HEADRACE_REDIS_URL
  value: redis://:$(REDIS_PASSWORD)@{{ include "headrace.fullname" . }}-redis:6379/0
{{- else if .Values.redis.urlSecret.name }}
- name: HEADRACE_REDIS_URL
  valueFrom:
    secretKeyRef: {name: {{ .Values.redis.urlSecret.name }}, key: {{ .Values.redis.urlSecret.key }}}
{{- end }}
{{- end }}

{{/* Secrets of those who answer HTTP. */}}
{{- define "headrace.env.http" -}}
{{- if .Values.apiKeys.secret -}}
- name: HEADRACE_API_KEYS
  valueFrom:
    secretKeyRef: {name: {{ .Values.apiKeys.secret }}, key: {{ .Values.apiKeys.key }}}
{{- end }}
{{- end }}

{{/* The operators' key, of those who take their orders. */}}
{{- define "headrace.env.admin" -}}
{{- if and .Values.apiKeys.secret .Values.apiKeys.adminKey -}}
- name: HEADRACE_ADMIN_API_KEY
  valueFrom:
    secretKeyRef: {name: {{ .Values.apiKeys.secret }}, key: {{ .Values.apiKeys.adminKey }}}
{{- end }}
{{- end }}
