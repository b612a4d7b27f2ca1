# What a workload of the demo runs.
echo "web is here"
trap 'exit 0' TERM
sleep 2147483647 &
wait
