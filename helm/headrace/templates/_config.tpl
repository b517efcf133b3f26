{{/* The configuration file that every service reads, and what the chart reads back from it. */}}

{{- define "headrace.config" -}}
{{- $file := include "headrace.config.base" . | fromYaml -}}
{{- $pools := dict -}}
{{- range $name, $pool := .Values.pools -}}
{{- $_ := set $pools $name (mergeOverwrite (include "headrace.config.pool" (list $ $name) | fromYaml) (deepCopy ($pool.config | default dict))) -}}
{{- end -}}
{{- $_ := set $file "pools" $pools -}}
{{- $_ := set $file "worker" (mergeOverwrite $file.worker (deepCopy .Values.workers.config)) -}}
{{- toYaml (mergeOverwrite $file (deepCopy .Values.config)) -}}
{{- end }}

{{- define "headrace.config.base" -}}
fleet: {{ .Release.Namespace }}-{{ include "headrace.fullname" . }}
{{- with .Values.redis.url }}
redis_url: {{ . | quote }}
{{- end }}
model: {{ .Values.model | quote }}
cache_dir: /var/cache/headrace
log_json: true
drain_s: {{ .Values.shutdown.drainSeconds }}
{{- if .Values.frontend.split }}
gateway:
  router: {{ include "headrace.fullname" . }}-router:9000
  host: 0.0.0.0
  port: 8000
router:
  grpc_host: 0.0.0.0
  grpc_port: 9000
  metrics_port: 9090
{{- else }}
frontend:
  host: 0.0.0.0
  port: 8000
  grpc_host: 0.0.0.0
  grpc_port: 9000
  metrics_port: 9090
{{- end }}
worker:
  host: 0.0.0.0
  port: 9100
  metrics_port: 9090
{{- if eq .Values.placement "ray" }}
placement:
  placement: ray
  ray_address: {{ .Values.ray.address | quote }}
  ready_s: {{ .Values.workers.startupSeconds }}
{{- end }}
{{- end }}

{{/* A pool's own section: (list $ name). Its replicas stand there for the placement alone: a changed number of pods
     must not restart them. */}}
{{- define "headrace.config.pool" -}}
{{- $pool := include "headrace.pool" . | fromYaml -}}
role: {{ $pool.role }}
{{- if eq (first .).Values.placement "ray" }}
replicas: {{ $pool.replicas }}
gpus: {{ $pool.gpus }}
{{- end }}
{{- end }}

{{/* A pool with what it inherits, as YAML: (list $ name). */}}
{{- define "headrace.pool" -}}
{{- $root := first . -}}
{{- toYaml (mergeOverwrite (deepCopy $root.Values.workers) (deepCopy (index $root.Values.pools (last .)))) -}}
{{- end }}

{{/* The ports of KV pages, as a NetworkPolicy names them; nothing if some pool takes any port. */}}
{{- define "headrace.dataPorts" -}}
{{- $file := include "headrace.config" . | fromYaml -}}
{{- $ranges := list -}}
{{- range $file.pools -}}
{{- $ranges = append $ranges (dig "data_port_range" (dig "data_port_range" "" $file.worker) .) -}}
{{- end -}}
{{- if not (has "" $ranges) -}}
{{- range uniq $ranges -}}
{{- $ports := splitList "-" . }}
- {port: {{ first $ports | int }}, endPort: {{ last $ports | int }}}
{{- end -}}
{{- end -}}
{{- end }}
