{{/*
A part's Deployment: dict "root", "component", "args", "env", "ports", "mounts", "volumes", and "replicated" for what runs
several times; "tolerations" beside those of the values; "command" where the subcommand is not the component's name.
A flag in extraArgs takes the place of the same one in "args": a program refuses a flag that it is given twice.
extraVolumes and extraVolumeMounts of the values come after "volumes" and "mounts".
*/}}
{{- define "outrigger.deployment" -}}
{{- $values := index .root.Values .component -}}
{{- $selector := include "outrigger.selector" . -}}
{{- $given := list }}
{{- range $values.extraArgs }}{{ $given = append $given (splitList "=" . | first) }}{{ end -}}
{{- $args := append .args (printf "--log-format=%s" .root.Values.log.format) }}
{{- if ne .root.Values.log.level "info" }}{{ $args = append $args (printf "--log-level=%s" .root.Values.log.level) }}{{ end }}
{{- $mounts := list }}
{{- range .mounts }}{{ $mounts = append $mounts (dict "name" . "mountPath" (printf "/etc/outrigger/%s" .) "readOnly" true) }}{{ end }}
{{- $volumes := .volumes }}
{{- with $values.extraVolumes }}{{ $volumes = printf "%s\n%s" $volumes (toYaml .) | trim }}{{ end -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: outrigger-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "outrigger.labels" . | nindent 4 }}
spec:
  {{- if not (and .replicated $values.autoscaling.enabled) }}
  replicas: {{ if .replicated }}{{ $values.replicas }}{{ else }}1{{ end }}
  {{- end }}
  selector:
    matchLabels:
      {{- $selector | nindent 6 }}
  strategy:
    {{- if .replicated }}
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
    {{- else }}
    type: Recreate
    {{- end }}
  template:
    metadata:
      labels:
        {{- $selector | nindent 8 }}
      {{- with $values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: outrigger-{{ .component }}
      priorityClassName: {{ .root.Values.priorityClass.name }}
      # The process's --shutdown-delay and --drain-timeout together, and a reserve.
      terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
      {{- with .root.Values.image.pullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      affinity:
        {{- include "outrigger.noDpus" .root | nindent 8 }}
      {{- if .replicated }}
      topologySpreadConstraints:
        {{- include "outrigger.spread" .component | nindent 8 }}
      {{- end }}
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with concat (.tolerations | default list) ($values.tolerations | default list) }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: {{ .component }}
          image: {{ include "outrigger.image" .root | quote }}
          {{- with .root.Values.image.pullPolicy }}
          imagePullPolicy: {{ . }}
          {{- end }}
          args:
            - {{ .command | default .component }}
            {{- range $args }}
            {{- if not (has (splitList "=" . | first) $given) }}
            - {{ . | quote }}
            {{- end }}
            {{- end }}
            {{- range $values.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          {{- with .env }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            {{- range $name, $port := .ports }}
            - {name: {{ $name }}, containerPort: {{ $port }}}
            {{- end }}
            - {name: admin, containerPort: 8080}
          startupProbe:
            httpGet: {path: /livez, port: admin}
            periodSeconds: 1
            failureThreshold: 60
          livenessProbe:
            httpGet: {path: /livez, port: admin}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          readinessProbe:
            httpGet: {path: /readyz, port: admin}
            periodSeconds: 2
            timeoutSeconds: 2
            failureThreshold: 2
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          volumeMounts:
            {{- concat $mounts ($values.extraVolumeMounts | default list) | default list | toYaml | nindent 12 }}
      volumes:
        {{- $volumes | default "[]" | nindent 8 }}
{{- end }}

{{/* A part that answers: its Service and its budget for disruptions. dict "root", "component", "port", "portName". */}}
{{- define "outrigger.service" -}}
{{- $service := (index .root.Values .component).service | default dict -}}
apiVersion: v1
kind: Service
metadata:
  name: outrigger-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "outrigger.labels" . | nindent 4 }}
  {{- with $service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with $service.ipFamilyPolicy }}
  ipFamilyPolicy: {{ . }}
  {{- end }}
  {{- if and $service.type (ne $service.type "ClusterIP") }}
  type: {{ $service.type }}
  {{- end }}
  selector:
    {{- include "outrigger.selector" . | nindent 4 }}
  ports:
    - {name: {{ .portName }}, port: {{ .port }}, targetPort: {{ .portName }}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: outrigger-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "outrigger.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  # A Pod that isn't ready doesn't block the draining of its node.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "outrigger.selector" . | nindent 6 }}
{{- end }}

{{/* The keys of a Secret as a volume: dict "name", "secret", "keys". */}}
{{- define "outrigger.secretVolume" -}}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 288 # 0440
    items:
      {{- range .keys }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}

{{/* The CA of the API server, without a token. */}}
{{- define "outrigger.consoleVolume" -}}
- name: cluster
  projected:
    defaultMode: 288 # 0440
    sources:
      - configMap:
          name: kube-root-ca.crt
          items:
            - {key: ca.crt, path: ca.crt}
{{- end }}

{{/* The CA of the managers' certificates, wherever it is; not the key, which may be in the same Secret. */}}
{{- define "outrigger.managerCaVolume" -}}
- name: manager-ca
  projected:
    defaultMode: 288 # 0440
    sources:
      - secret:
          name: {{ .Values.manager.tlsSecret }}
          optional: true
          items:
            - {key: ca.crt, path: ca.crt}
      - configMap:
          name: outrigger-ca
          optional: true
          items:
            - {key: ca.crt, path: self-signed-ca.crt}
{{- end }}

{{/* The agent's files: its part of the values. */}}
{{- define "outrigger.agentVolumes" -}}
# One volume, so that both are updated together.
- name: tls
  projected:
    defaultMode: 288 # 0440
    sources:
      - secret:
          name: {{ .tlsSecret }}
          items:
            - {key: tls.crt, path: tls.crt}
            - {key: tls.key, path: tls.key}
      - configMap:
          name: {{ .caConfigMap }}
          items:
            - {key: ca.crt, path: manager-ca.crt}
{{- end }}
