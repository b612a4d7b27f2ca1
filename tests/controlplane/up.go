package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// startLimit is how long everything may take to start. On two idle cores it takes ten seconds.
const startLimit = 3 * time.Minute

// endpoint is an etcd and how to talk to it.
type endpoint struct {
	url, ca string
	client  pair
}

// up keeps clusters running.
type up struct {
	dir         string
	names       []string
	certManager bool
	programs    assets
	starter     starter
	etcd        *process
	clusters    []*cluster
	out         sync.Mutex
	// guests are processes of whoever started us; they end with us, and may end before.
	guests      []*process
	guestsMutex sync.Mutex
}

// errPortTaken says that somebody took one of our ports between the choice and its use.
var errPortTaken = errors.New("a port was taken by somebody else")

func runUp() int {
	flags := flag.NewFlagSet("up", flag.ExitOnError)
	dir := flags.String("dir", "", "directory for certificates, kubeconfigs, data and logs; made if it is missing (required)")
	names := flags.String("clusters", "infra,tenant", "names of the clusters, separated by commas")
	certManager := flags.Bool("cert-manager", false, "run cert-manager in the cluster infra")
	untilEOF := flags.Bool("until-stdin-eof", false, "end when standard input ends, which it does with whoever holds its other end")
	_ = flags.Parse(os.Args[1:])
	if *dir == "" || flags.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "up: --dir is required, and there are no arguments; see 'up --help'")
		return 2
	}
	absolute, err := filepath.Abs(*dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "up:", err)
		return 1
	}
	programs, err := findAssets()
	if err != nil {
		fmt.Fprintln(os.Stderr, "up:", err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	go watchParent(ctx, cancel)

	u := &up{dir: absolute, names: strings.Split(*names, ","), certManager: *certManager, programs: programs, starter: newStarter()}
	began := time.Now()
	for attempt := 1; ; attempt++ {
		if err = u.start(ctx); !errors.Is(err, errPortTaken) || attempt == 5 {
			break
		}
		u.stop()
	}
	defer u.stop()
	if err != nil {
		return u.fail(ctx, err)
	}
	if err := u.announce(time.Since(began)); err != nil {
		return u.fail(ctx, err)
	}
	go u.commands(ctx, cancel, *untilEOF)
	return u.fail(ctx, u.watch(ctx))
}

// fail tells what went wrong; being told to end is not wrong.
func (u *up) fail(ctx context.Context, err error) int {
	if err == nil || ctx.Err() != nil {
		return 0
	}
	u.say(map[string]any{"error": err.Error()})
	fmt.Fprintln(os.Stderr, "up:", err)
	return 1
}

// watchParent ends us when our parent has ended: we are somebody else's child then.
func watchParent(ctx context.Context, cancel context.CancelCauseFunc) {
	for parent := os.Getppid(); ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		if os.Getppid() != parent {
			cancel(errors.New("the parent process has ended"))
		}
	}
}

// process names one of the programs of a cluster.
func (u *up) process(cluster, program string, args ...string) *process {
	name := program
	if cluster != "" {
		name = cluster + "/" + program
	}
	return &process{
		name: name,
		args: append(u.programs.command(program), args...),
		log:  filepath.Join(u.dir, "logs", strings.ReplaceAll(name, "/", "-")+".log"),
	}
}

func (u *up) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not ready after %s", startLimit))
	defer cancel()
	u.clusters = nil
	// Data and logs of an attempt before would only mislead.
	for _, old := range []string{"etcd", "logs"} {
		if err := os.RemoveAll(filepath.Join(u.dir, old)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(u.dir, "logs"), 0o700); err != nil {
		return err
	}
	etcd, err := u.newEtcd()
	if err != nil {
		return err
	}
	for _, name := range u.names {
		c, err := newCluster(u, name, etcd)
		if err != nil {
			return err
		}
		u.clusters = append(u.clusters, c)
	}
	if err := u.starter.start(u.etcd); err != nil {
		return err
	}
	results := make(chan error, len(u.clusters))
	for _, c := range u.clusters {
		go func() { results <- u.startCluster(ctx, c) }()
	}
	for range u.clusters {
		err = errors.Join(err, <-results)
	}
	return err
}

func (u *up) newEtcd() (endpoint, error) {
	dir := filepath.Join(u.dir, "etcd")
	authority, err := newAuthority(dir, "etcd")
	if err != nil {
		return endpoint{}, err
	}
	serving, err := authority.issue("server", "etcd")
	if err != nil {
		return endpoint{}, err
	}
	client, err := authority.issue("client", "kube-apiserver")
	if err != nil {
		return endpoint{}, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return endpoint{}, err
	}
	url := fmt.Sprintf("https://127.0.0.1:%d", ports[0])
	peer := fmt.Sprintf("https://127.0.0.1:%d", ports[1])
	u.etcd = u.process("", "etcd",
		"--data-dir="+filepath.Join(dir, "data"), "--name=etcd",
		"--listen-client-urls="+url, "--advertise-client-urls="+url,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=etcd="+peer,
		"--cert-file="+serving.cert, "--key-file="+serving.key,
		"--trusted-ca-file="+authority.file(), "--client-cert-auth",
		"--peer-cert-file="+serving.cert, "--peer-key-file="+serving.key, "--peer-trusted-ca-file="+authority.file(),
		// What is written here is thrown away with the directory.
		"--unsafe-no-fsync", "--log-level=warn",
	)
	return endpoint{url: url, ca: authority.file(), client: client}, nil
}

func (u *up) startCluster(ctx context.Context, c *cluster) error {
	for i, p := range c.processes {
		if err := u.starter.start(p); err != nil {
			return err
		}
		if i == 0 {
			if err := u.await(ctx, c.processes[:1], c.apiserverReady); err != nil {
				return err
			}
			if u.certManager && c.name == "infra" {
				if err := u.applyCertManager(ctx, c); err != nil {
					return err
				}
			}
		}
	}
	return u.await(ctx, c.processes, c.ready)
}

// await waits for something, and says why it can't come when a process has ended.
func (u *up) await(ctx context.Context, processes []*process, ready func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		for ctx.Err() == nil {
			for _, p := range append([]*process{u.etcd}, processes...) {
				if p.running() {
					continue
				}
				if p.portTaken() {
					cancel(fmt.Errorf("%s: %w", p.name, errPortTaken))
				}
				cancel(fmt.Errorf("%s has ended; its log %s ends with:\n%s", p.name, p.log, p.tail(2000)))
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return ready(ctx)
}

func (u *up) applyCertManager(ctx context.Context, c *cluster) error {
	documents, err := certManagerManifests()
	if err != nil {
		return err
	}
	documents = append(documents, fmt.Appendf(nil, "{apiVersion: v1, kind: Namespace, metadata: {name: %s}}\n", certManagerNamespace))
	args := append(u.programs.command("kubectl"), "--kubeconfig="+c.kubeconfig, "apply", "--server-side", "-f", "-")
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Stdin = strings.NewReader(string(joinYAML(documents)))
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("cert-manager's definitions: %w: %s", err, output)
	}
	return nil
}

func joinYAML(documents [][]byte) []byte {
	var all []byte
	for _, document := range documents {
		all = append(append(all, "\n---\n"...), document...)
	}
	return all
}

// all returns every process in the order in which they start.
func (u *up) all() []*process {
	all := []*process{u.etcd}
	for _, c := range u.clusters {
		all = append(all, c.processes...)
	}
	return all
}

// watch returns when a process has ended that should not have, or nil when we are told to end.
func (u *up) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		for _, p := range u.all() {
			if p.wanted && !p.running() {
				return fmt.Errorf("%s has ended; its log %s ends with:\n%s", p.name, p.log, p.tail(2000))
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

// stop takes everything down: clients before servers, so that nothing waits for what is gone.
func (u *up) stop() {
	u.guestsMutex.Lock()
	for _, p := range u.guests {
		if p.running() {
			p.kill()
		}
	}
	u.guestsMutex.Unlock()
	if u.etcd == nil {
		return
	}
	processes := u.all()
	slices.Reverse(processes)
	var wait sync.WaitGroup
	for _, p := range processes[:len(processes)-1] {
		// An API server waits for its watchers to go; nobody needs it to.
		deadline := 2 * time.Second
		if strings.HasSuffix(p.name, "kube-apiserver") {
			deadline = 100 * time.Millisecond
		}
		wait.Go(func() { p.stop(deadline) })
	}
	wait.Wait()
	u.etcd.stop(2 * time.Second)
}

// announce says that all is ready and where.
func (u *up) announce(took time.Duration) error {
	clusters, pids := map[string]any{}, map[string]int{}
	for _, c := range u.clusters {
		clusters[c.name] = map[string]string{"server": c.server, "kubeconfig": c.kubeconfig, "ca": c.ca}
	}
	for _, p := range u.all() {
		pids[p.name] = p.cmd.Process.Pid
	}
	state := map[string]any{
		"ready": true, "dir": u.dir, "seconds": float64(took.Milliseconds()) / 1000,
		"clusters": clusters, "pids": pids, "kubectl": u.programs.command("kubectl"),
	}
	data, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(u.dir, "state.json"), append(data, '\n'), 0o600); err != nil {
		return err
	}
	u.say(state)
	return nil
}

// commands obeys lines of standard input, each answered by a line of JSON:
//
//	run {"name": "x", "args": ["program", "argument"], "env": ["KEY=value"]}
//	                starts another process that ends with us; its log is logs/x.log
//	term NAME       ends a process with SIGTERM and waits for it
//	stop NAME       ends it with SIGKILL
//	start NAME      starts it again
//	restart NAME    stop and start
func (u *up) commands(ctx context.Context, cancel context.CancelCauseFunc, untilEOF bool) {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		verb, rest, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		began := time.Now()
		if err := u.obey(ctx, verb, rest); err != nil {
			u.say(map[string]any{"error": err.Error(), "command": verb})
			continue
		}
		u.say(map[string]any{"done": verb, "seconds": time.Since(began).Seconds()})
	}
	if untilEOF && (lines.Err() == nil || errors.Is(lines.Err(), io.EOF)) {
		cancel(errors.New("standard input has ended"))
	}
}

func (u *up) obey(ctx context.Context, verb, rest string) error {
	if verb == "run" {
		return u.run(rest)
	}
	u.guestsMutex.Lock()
	all := append(u.all(), u.guests...)
	u.guestsMutex.Unlock()
	i := slices.IndexFunc(all, func(p *process) bool { return p.name == rest })
	if i < 0 {
		return fmt.Errorf("there is no process %q", rest)
	}
	p := all[i]
	switch verb {
	case "term":
		p.stop(time.Minute)
		return nil
	case "stop":
		p.kill()
		return nil
	case "start", "restart":
		if p.running() {
			p.kill()
		}
		if err := u.starter.start(p); err != nil {
			return err
		}
		for _, c := range u.clusters {
			if strings.HasPrefix(rest, c.name+"/") {
				return c.apiserverReady(ctx)
			}
		}
		return nil
	default:
		return fmt.Errorf("there is no command %q: use run, term, stop, start or restart", verb)
	}
}

// run starts a guest.
func (u *up) run(text string) error {
	var guest struct {
		Name string   `json:"name"`
		Args []string `json:"args"`
		Env  []string `json:"env"`
	}
	if err := json.Unmarshal([]byte(text), &guest); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	if guest.Name == "" || len(guest.Args) == 0 {
		return errors.New("run: name and args are needed")
	}
	p := &process{
		name: guest.Name,
		args: guest.Args,
		env:  guest.Env,
		log:  filepath.Join(u.dir, "logs", strings.ReplaceAll(guest.Name, "/", "-")+".log"),
	}
	if err := u.starter.start(p); err != nil {
		return err
	}
	u.guestsMutex.Lock()
	defer u.guestsMutex.Unlock()
	u.guests = append(slices.DeleteFunc(u.guests, func(old *process) bool { return old.name == p.name }), p)
	return nil
}

// say writes one line of JSON.
func (u *up) say(message map[string]any) {
	u.out.Lock()
	defer u.out.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(message)
}

// freePorts returns ports on loopback that nobody uses now.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		// Kept open until all are chosen, so that none is chosen twice.
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
