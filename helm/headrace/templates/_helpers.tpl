{{/* Names and labels. */}}

{{/* 31 characters leave room for a pool's name and a StatefulSet's hash in a label of 63. */}}
{{- define "headrace.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $full | trunc 31 | trimSuffix "-" -}}
{{- end }}

{{- define "headrace.serviceAccountName" -}}
{{- $own := .Values.serviceAccount.create | ternary (include "headrace.fullname" .) "default" -}}
{{- .Values.serviceAccount.name | default $own -}}
{{- end }}

{{/* What selects pods: (list $ component). */}}
{{- define "headrace.selector" -}}
{{- $root := first . -}}
app.kubernetes.io/name: {{ $root.Values.nameOverride | default $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{/* Every object's labels: (list $ component). */}}
{{- define "headrace.labels" -}}
{{- $root := first . -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- end }}

{{- define "headrace.secretName" -}}
{{- .Values.existingSecret | default (include "headrace.fullname" .) -}}
{{- end }}

{{/* The HTTP door's name, without the release's: which process answers HTTP. */}}
{{- define "headrace.door" -}}
{{- .Values.frontend.split | ternary "gateway" "frontend" -}}
{{- end }}

{{/* Processes in front of the workers, as a JSON list. */}}
{{- define "headrace.controls" -}}
{{- .Values.frontend.split | ternary (list "router" "gateway") (list "frontend") | toJson -}}
{{- end }}
