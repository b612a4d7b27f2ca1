# subnet NUMBER: addresses for the Pods of a Node, a thousand.
subnet() { echo "10.78.$(($1 * 4)).0/22"; }
