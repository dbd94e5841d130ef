{{- define "ridgeway.labels" -}}
app.kubernetes.io/name: ridgeway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ridgeway.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "ridgeway.container" -}}
securityContext:
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities:
    drop:
      - ALL
{{- end }}

{{- define "ridgeway.beside" -}}
# on the node of the coordinator, whose volume one node has at a time
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "ridgeway.labels" . | nindent 12 }}
            app.kubernetes.io/component: coordinator
{{- end }}
