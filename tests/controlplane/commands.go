package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const commandsHelp = `Commands are lines on standard input. Each is answered by a line of JSON, with "done" or "error", once it is done.
NAME is a name in "pids": etcd, infra/kube-apiserver, tenant/kwok ...

  stop NAME...    ends processes with SIGKILL, all of them at once
  start NAME...   starts them again, on the same ports, none after another is ready, and waits until all of them work
  restart NAME... both
  term NAME       ends a process with SIGTERM and waits for it
  pause NAME      suspends a process with SIGSTOP and waits until all of it is suspended; its connections stay open
  resume NAME     lets it go on with SIGCONT
  run {"name": "x", "args": ["program", "argument"], "env": ["KEY=value"]}
                  starts another process that ends with this one; its log is DIR/logs/x.log
  node {"cluster": "infra", "name": "x", "address": "10.77.0.11"}
                  writes what the kubelet of a Node needs, with --nodes-address: its kubeconfig, and its certificate for servers, in
                  DIR/infra/nodes/x.kubeconfig, x.crt and x.key
`

// readLines sends each line and calls atEnd after the last.
func readLines(from io.Reader, lines chan<- string, atEnd func()) {
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		if line := strings.TrimSpace(scanner.Text()); line != "" {
			lines <- line
		}
	}
	atEnd()
}

// commands obeys lines, one after the other, each answered by a line of JSON.
func (u *up) commands(ctx context.Context, lines <-chan string) {
	for line := range lines {
		verb, rest, _ := strings.Cut(line, " ")
		began := time.Now()
		if verb == "node" {
			if err := u.node(rest); err != nil {
				u.say(map[string]any{"error": err.Error(), "command": verb})
			} else {
				u.say(map[string]any{"done": verb, "seconds": seconds(time.Since(began))})
			}
			continue
		}
		p, err := u.obey(ctx, verb, rest)
		if err != nil {
			u.say(map[string]any{"error": err.Error(), "command": verb})
			continue
		}
		answer := map[string]any{"done": verb, "name": p.name, "seconds": seconds(time.Since(began))}
		if p.running() {
			answer["pid"] = p.pid()
		}
		if verb == "restart" {
			answer["restarted"] = p.name
		}
		u.say(answer)
	}
}

func (u *up) obey(ctx context.Context, verb, rest string) (*process, error) {
	if verb == "run" {
		return u.run(rest)
	}
	if !slices.Contains([]string{"term", "stop", "start", "restart", "pause", "resume"}, verb) {
		return nil, fmt.Errorf("there is no command %q: use run, node, term, stop, start, restart, pause or resume", verb)
	}
	found, err := u.named(strings.Fields(rest))
	if err != nil {
		return nil, err
	}
	p := found[0]
	if len(found) > 1 && !slices.Contains([]string{"stop", "start", "restart"}, verb) {
		return nil, fmt.Errorf("%s takes one name", verb)
	}
	switch verb {
	case "term":
		p.stop(time.Minute)
		return p, nil
	case "stop":
		killAll(found)
		return p, nil
	case "pause":
		return p, p.pause(ctx)
	case "resume":
		return p, p.resume()
	default:
		killAll(found)
		for _, p := range found {
			if err := u.starter.start(p); err != nil {
				return nil, err
			}
		}
		for _, p := range found {
			if err := u.awaitAgain(ctx, p); err != nil {
				return nil, err
			}
		}
		return p, u.writeState()
	}
}

// named returns the processes of these names, at least one.
func (u *up) named(names []string) ([]*process, error) {
	u.guestsMutex.Lock()
	all := append(u.all(), u.guests...)
	u.guestsMutex.Unlock()
	var found []*process
	for _, name := range names {
		i := slices.IndexFunc(all, func(p *process) bool { return p.name == name })
		if i < 0 {
			var known []string
			for _, p := range all {
				known = append(known, p.name)
			}
			return nil, fmt.Errorf("there is no process %q; there are %s", name, strings.Join(known, ", "))
		}
		found = append(found, all[i])
	}
	if len(found) == 0 {
		return nil, errors.New("a name is needed")
	}
	return found, nil
}

// awaitAgain waits until a process that was started again works. That it ends instead is for watch to see.
func (u *up) awaitAgain(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("%s is not ready after %s", p.name, startLimit))
	defer cancel()
	for _, c := range u.clusters {
		wait := p
		if p == u.etcd {
			// It works when those work that use it.
			wait = c.processes[0]
			if !wait.running() {
				continue
			}
		} else if !slices.Contains(c.processes, p) {
			continue
		}
		if err := c.await(ctx, wait); err != nil {
			return err
		}
	}
	return nil
}

// run starts a guest.
func (u *up) run(text string) (*process, error) {
	var guest struct {
		Name string   `json:"name"`
		Args []string `json:"args"`
		Env  []string `json:"env"`
	}
	if err := json.Unmarshal([]byte(text), &guest); err != nil {
		return nil, fmt.Errorf("run: %w", err)
	}
	if guest.Name == "" || len(guest.Args) == 0 {
		return nil, errors.New("run: name and args are needed")
	}
	u.guestsMutex.Lock()
	defer u.guestsMutex.Unlock()
	same := func(p *process) bool { return p.name == guest.Name }
	if slices.ContainsFunc(u.all(), same) || slices.ContainsFunc(u.guests, func(p *process) bool { return same(p) && p.running() }) {
		return nil, fmt.Errorf("run: %s is running already; stop it first, or choose another name", guest.Name)
	}
	p := &process{name: guest.Name, args: guest.Args, env: guest.Env, log: u.logOf(guest.Name)}
	if err := u.starter.start(p); err != nil {
		return nil, err
	}
	u.guests = append(slices.DeleteFunc(u.guests, same), p)
	return p, nil
}

// announce says that all is ready and where.
func (u *up) announce(took time.Duration) error {
	u.took = took
	if err := u.writeState(); err != nil {
		return err
	}
	u.say(u.state())
	return nil
}

func (u *up) state() map[string]any {
	clusters, pids, commands := map[string]any{}, map[string]int{}, map[string][]string{}
	for _, c := range u.clusters {
		clusters[c.name] = map[string]string{"server": c.server, "kubeconfig": c.kubeconfig, "ca": c.ca}
	}
	for _, p := range u.all() {
		pids[p.name], commands[p.name] = p.pid(), p.args
	}
	return map[string]any{
		"ready": true, "dir": u.dir, "seconds": seconds(u.took),
		"clusters": clusters, "pids": pids, "commands": commands, "kubectl": u.programs.command("kubectl"),
	}
}

// writeState writes state.json as a whole: somebody may be reading it.
func (u *up) writeState() error {
	data, err := json.MarshalIndent(u.state(), "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(u.dir, "state.json")
	if err := os.WriteFile(file+".part", append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".part", file)
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// say writes one line of JSON.
func (u *up) say(message map[string]any) {
	u.out.Lock()
	defer u.out.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(message)
}

// node writes what a kubelet needs to be a Node of a cluster.
func (u *up) node(text string) error {
	var node struct{ Cluster, Name, Address string }
	if err := json.Unmarshal([]byte(text), &node); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	i := slices.IndexFunc(u.clusters, func(c *cluster) bool { return c.name == node.Cluster })
	address := net.ParseIP(node.Address)
	if i < 0 || node.Name == "" || address == nil || u.address == "" {
		return errors.New("node: the name of a cluster, a name and an address are needed, and --nodes-address")
	}
	c := u.clusters[i]
	dir := filepath.Join(u.dir, c.name, "nodes")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	issuer := *c.authority
	issuer.dir, issuer.addresses = dir, []net.IP{address}
	client, err := issuer.issue(node.Name+"-client", "system:node:"+node.Name, "system:nodes")
	if err != nil {
		return err
	}
	if _, err := issuer.issue(node.Name, "system:node:"+node.Name); err != nil {
		return err
	}
	port := c.server[strings.LastIndexByte(c.server, ':')+1:]
	server := "https://" + net.JoinHostPort(u.address, port)
	return writeKubeconfig(filepath.Join(dir, node.Name+".kubeconfig"), c.name, server, c.ca, client)
}
