# What a companion of the demo runs: it says which workload it serves, by the facts that it has got.
workload=$(cat /workload-info/workload)
name=${workload#*\"resourceName\":\"}
echo "firewall for ${name%%\"*} on $TENANT_NODE_NAME"
trap 'exit 0' TERM
sleep 2147483647 &
wait
