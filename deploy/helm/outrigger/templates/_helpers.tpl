{{/* The image. */}}
{{- define "outrigger.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end }}

{{/* What a part's Pods are found by: dict "component". */}}
{{- define "outrigger.selector" -}}
app.kubernetes.io/name: outrigger
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of objects: dict "root", "component". */}}
{{- define "outrigger.labels" -}}
{{ include "outrigger.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/*
The objects of a file that is also installed without Helm, for this release's namespace and label of hosts: dict "root",
"file", and "skip", a pattern of text that objects have which are not wanted.
*/}}
{{- define "outrigger.file" -}}
{{- $text := .root.Files.Get .file -}}
{{- if not $text }}{{ fail (printf "%s is not in the chart" .file) }}{{ end -}}
{{- $text = $text | replace "outrigger-system" .root.Release.Namespace -}}
{{- $labels := splitList "," .root.Values.hostLabel | join "', '" -}}
{{- $text = $text | replace "'provisioning.dpu.nvidia.com/dpunode-name', 'provisioning.dpu.nvidia.com/host'" (printf "'%s'" $labels) -}}
{{- $skip := .skip | default "" -}}
{{- range $object := regexSplit "(?m)^---\\s*$" $text -1 -}}
{{- if and (regexMatch "(?m)^kind:" $object) (not (and $skip (regexMatch $skip $object))) }}
{{- if regexMatch "(?m)^kind: Namespace$" $object }}
{{- /* What people have made in it stays when the release goes. */}}
{{- $object = regexReplaceAll "(?m)^metadata:$" $object "metadata:\n  annotations:\n    helm.sh/resource-policy: keep" }}
{{- end }}
---
{{ trim $object }}
{{- end -}}
{{- end }}
{{ end }}

{{/* Where nothing of it may run: on DPUs, which are tenants', sooner or later. */}}
{{- define "outrigger.noDpus" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          {{- range splitList "," .Values.hostLabel }}
          - {key: {{ . }}, operator: DoesNotExist}
          {{- end }}
          - {key: outrigger.dev.node-restriction.kubernetes.io/tenant, operator: DoesNotExist}
{{- end }}

{{/* Replicas on different nodes, and zones where there are some. Old Pods of a rollout don't count. */}}
{{- define "outrigger.spread" -}}
{{- $component := . -}}
{{- range $key, $unsatisfiable := dict "kubernetes.io/hostname" "DoNotSchedule" "topology.kubernetes.io/zone" "ScheduleAnyway" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: {{ $unsatisfiable }}
  nodeTaintsPolicy: Honor
  labelSelector:
    matchLabels:
      {{- include "outrigger.selector" (dict "component" $component) | nindent 6 }}
  matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}
