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
