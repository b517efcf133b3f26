{{/* What a schema cannot say, or cannot say in a sentence. */}}

{{- define "headrace.refusals" -}}
{{- if not (or .Values.redis.enabled .Values.redis.url .Values.redis.urlSecret.name) -}}
{{- fail "redis.enabled is false and no other Redis is named: set redis.url or redis.urlSecret.name." -}}
{{- end -}}
{{- if and .Values.redis.enabled (or .Values.redis.url .Values.redis.urlSecret.name) -}}
{{- fail "redis.enabled is true and another Redis is named too: set redis.enabled to false to use that one." -}}
{{- end -}}
{{- if and (eq .Values.placement "ray") (not .Values.ray.address) -}}
{{- fail "placement is ray and ray.address is empty: set it to ray://host:port of the cluster's head." -}}
{{- end -}}
{{- if and .Values.apiKeys.adminKey (not .Values.apiKeys.secret) -}}
{{- fail "apiKeys.adminKey is set and apiKeys.secret is empty: name the Secret that holds it." -}}
{{- end -}}
{{- if hasKey .Values.workers "role" -}}
{{- fail "workers.role is no default of pools: a role is each pool's own, set pools.NAME.role." -}}
{{- end -}}
{{- range $name, $_ := .Values.pools -}}
{{- if has $name (list "chat" "control" "frontend" "gateway" "metrics" "placement" "redis" "router" "workers") -}}
{{- fail (printf "pools.%s has the name of another part of the release: choose another." $name) -}}
{{- end -}}
{{- end -}}
{{- $file := include "headrace.config" . | fromYaml -}}
{{- include "headrace.refusals.secrets" (list "config" $file) -}}
{{- end }}

{{/* A secret anywhere in the file: (list path map). */}}
{{- define "headrace.refusals.secrets" -}}
{{- $path := first . -}}
{{- range $key, $value := last . -}}
{{- if has $key (list "worker_token" "api_keys" "admin_api_key") -}}
{{- fail (printf "%s.%s would stand in a ConfigMap: secrets are referenced, see existingSecret and apiKeys." $path $key) -}}
{{- end -}}
{{- if kindIs "map" $value -}}
{{- include "headrace.refusals.secrets" (list (printf "%s.%s" $path $key) $value) -}}
{{- end -}}
{{- end -}}
{{- end }}
