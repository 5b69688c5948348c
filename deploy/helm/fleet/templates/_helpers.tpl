{{- define "fleet.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "fleet.labels" -}}
app.kubernetes.io/name: fleet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "fleet.selector" -}}
app.kubernetes.io/name: fleet
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The image of a member: by its digest, if there is one. */ -}}
{{- define "fleet.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end }}

{{- /* The number of ports that clients may use at one member. */ -}}
{{- define "fleet.ports" -}}
{{- if .Values.clients.sni.enabled -}}1{{- else -}}{{ add 1 .Values.identities.count }}{{- end -}}
{{- end }}

{{- /* The host that one member advertises; takes a list of the root and the member. */ -}}
{{- define "fleet.host" -}}
{{- $root := index . 0 -}}{{- $member := index . 1 -}}
{{- if $root.Values.clients.host -}}
{{- $root.Values.clients.host | replace "{member}" $member -}}
{{- else -}}
{{- $member }}-clients.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}
{{- end -}}
{{- end }}

{{- /* The rack of all members in the file of each process; a process reports only its own rack to the others. */ -}}
{{- define "fleet.rackOfPod" -}}${FLEET_RACK:-unknown}{{- end }}

{{- /* fleet.yaml, as a document. */ -}}
{{- define "fleet.configuration" -}}
{{- $name := include "fleet.name" . -}}
{{- $clients := .Values.clients -}}
{{- $ports := include "fleet.ports" . | int -}}
{{- $members := dict -}}
{{- range $i := until (int .Values.replicas) -}}
{{- $member := printf "%s-%d" $name $i -}}
{{- $own := printf "%s.%s-members.%s.svc.%s" $member $name $.Release.Namespace $.Values.clusterDomain -}}
{{- $host := include "fleet.host" (list $ $member) -}}
{{- $listener := dict "bind" (printf "0.0.0.0:%d" (int $clients.port)) -}}
{{- if $clients.sni.enabled -}}
{{- $_ := set $listener "advertise" (printf "%s:%d" $host (int $clients.port)) -}}
{{- $_ := set $listener "addressing" "sni" -}}
{{- $_ := set $listener "broker_host" ($clients.sni.brokerHost | replace "{member}" $member) -}}
{{- else -}}
{{- $_ := set $listener "first_port" (int $clients.firstPort) -}}
{{- if eq $clients.type "NodePort" -}}
{{- $first := add $clients.firstNodePort (mul $i $ports) | int -}}
{{- $_ := set $listener "advertise" (printf "%s:%d" $host $first) -}}
{{- $_ := set $listener "advertise_first_port" (add1 $first | int) -}}
{{- else -}}
{{- $_ := set $listener "advertise" (printf "%s:%d" $host (int $clients.port)) -}}
{{- $_ := set $listener "advertise_first_port" (int $clients.firstPort) -}}
{{- end -}}
{{- end -}}
{{- $it := dict "voter" (lt $i (int $.Values.voters)) "peer" (printf "%s:7101" $own) "admin" (printf "%s:7201" $own) "data_dir" (printf "/var/lib/fleet/%s" $member) "workers" $.Values.workers "listeners" (dict "clients" $listener) -}}
{{- with $.Values.racks -}}
{{- $_ := set $it "rack" (index . (mod $i (len .)) | toString) -}}
{{- end -}}
{{- if $.Values.rackFromZone -}}
{{- $_ := set $it "rack" (include "fleet.rackOfPod" $) -}}
{{- end -}}
{{- $_ := set $members $member $it -}}
{{- end -}}
{{- $tokens := dict "read" (dict "file" "tokens/read") "write" (dict "file" "tokens/write") -}}
{{- $made := dict "fleet" $name "bootstrap_servers" .Values.bootstrapServers "identities" (dict "first_id" (int .Values.identities.firstId) "count" (int .Values.identities.count)) "peer_tls" dict "admin" (dict "tls" dict "tokens" $tokens) "members" $members -}}
{{- if $clients.tlsSecret -}}
{{- $_ := set $made "listener_tls" (dict "clients" (dict "certificate" "tls/tls.crt" "key" "tls/tls.key")) -}}
{{- end -}}
{{- $rack := include "fleet.rackOfPod" . -}}
{{- /* In quotes: else a zone named 1 would be a number. */ -}}
{{- mergeOverwrite $made (deepCopy .Values.settings) | toYaml | replace $rack (quote $rack) -}}
{{- end }}

{{- /* The voters of the running release: after a change, pods would restart one by one with two sets of voters. */ -}}
{{- define "fleet.votersStay" -}}
{{- $there := lookup "v1" "ConfigMap" .Release.Namespace (include "fleet.name" .) -}}
{{- if and $there (not .Values.votersChange) -}}
{{- $voters := 0 -}}
{{- range (get $there.data "fleet.yaml" | fromYaml).members -}}{{- if .voter -}}{{- $voters = add1 $voters -}}{{- end -}}{{- end -}}
{{- if ne (int $voters) (int .Values.voters) }}{{ fail (printf "voters: %d, and this release runs with %d; two sets of voters at once can have two leaders. Scale the release to 0, then upgrade with votersChange=true (docs/kubernetes.md, Other voters)" (int .Values.voters) (int $voters)) }}{{ end -}}
{{- end -}}
{{- end }}

{{- /* Annotations of the service of one member; takes a list of the root and the member, or of the root only. */ -}}
{{- define "fleet.annotations" -}}
{{- $root := index . 0 -}}
{{- range $key, $value := $root.Values.clients.annotations }}
{{- if eq (len $) 2 }}
{{ $key }}: {{ $value | replace "{member}" (index $ 1) | quote }}
{{- else if not (contains "{member}" $value) }}
{{ $key }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Checks that the schema cannot express. */ -}}
{{- define "fleet.check" -}}
{{- if gt (int .Values.voters) (int .Values.replicas) }}{{ fail (printf "voters: %d, and there are %d members; set voters to at most the number of members" (int .Values.voters) (int .Values.replicas)) }}{{ end -}}
{{- if not .Values.bootstrapServers }}{{ fail "bootstrapServers: name at least one broker, such as [kafka-0.kafka.svc.cluster.local:9092]" }}{{ end -}}
{{- if and .Values.clients.sni.enabled (not .Values.clients.tlsSecret) }}{{ fail "clients.sni: clients name the broker in the TLS handshake; set clients.tlsSecret" }}{{ end -}}
{{- if and .Values.clients.sni.oneLoadBalancer (not .Values.clients.sni.enabled) }}{{ fail "clients.sni.oneLoadBalancer: with a port for each broker, each member needs an address of its own; set clients.sni.enabled" }}{{ end -}}
{{- if and (ne .Values.clients.type "ClusterIP") (not .Values.clients.host) }}{{ fail (printf "clients.host: with clients.type %s it must not be empty; set it to the host that clients dial, such as {member}.kafka.example" .Values.clients.type) }}{{ end -}}
{{- if and (not .Values.clients.sni.oneLoadBalancer) (ne .Values.clients.type "NodePort") .Values.clients.host (not (contains "{member}" .Values.clients.host)) }}{{ fail "clients.host: two members would advertise the same address; put {member} into it" }}{{ end -}}
{{- if and .Values.image.digest .Values.image.tag }}{{ fail (printf "image.tag: %s, but image.digest already names the image; set one of the two" .Values.image.tag) }}{{ end -}}
{{- if and .Values.rackFromZone .Values.racks }}{{ fail "rackFromZone: racks already names the racks of members; set one of the two" }}{{ end -}}
{{- if and .Values.clients.sni.enabled (eq .Values.clients.type "NodePort") }}{{ fail "clients.type: NodePort has a port of its own for each broker; with clients.sni use LoadBalancer or ClusterIP" }}{{ end -}}
{{- end }}
