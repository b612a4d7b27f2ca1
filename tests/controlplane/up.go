package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// startLimit is how long everything may take to start. On two idle cores it takes five seconds.
const startLimit = 3 * time.Minute

const upHelp = `Starts Kubernetes clusters on loopback and keeps them until it receives a signal to end.

Usage: controlplane up --dir DIR [FLAGS]

When all is ready, a line of JSON on standard output tells where; the same is in DIR/state.json. An administrator's
kubeconfig is in DIR/<cluster>.kubeconfig, logs in DIR/logs. A line of JSON with "error" tells why it ends early.
It ends at SIGTERM, SIGINT or SIGHUP, with its parent process, and, when asked to, with its standard input.

` + commandsHelp + `
KUBEBUILDER_ASSETS=<directory>, else the directory of a kube-apiserver on the PATH, gives the programs that are there, from
Kubernetes 1.34 on. The others are built in.

Flags:
`

// errPortTaken says that somebody took one of our ports between the choice and its use.
var errPortTaken = errors.New("a port was taken by somebody else")

// errTold is the cause of an end that a signal asked for, which is no failure.
var errTold = errors.New("shutting down")

// parent is our parent as early as we can know it.
var parent = os.Getppid()

// up keeps clusters running.
type up struct {
	dir         string
	names       []string
	certManager bool
	noFsync     bool
	auditLog    bool
	etcdQuota   int64
	// address is where real kubelets reach the API servers; empty where kwok stands in for them.
	address  string
	programs assets
	starter  starter
	etcd     *process
	clusters []*cluster
	// took is the time from the start to ready.
	took time.Duration
	out  sync.Mutex
	// guests are processes of whoever started us; they end with us, and may end before.
	guests      []*process
	guestsMutex sync.Mutex
}

func runUp() int {
	u := &up{starter: newStarter()}
	flags := flag.NewFlagSet("up", flag.ExitOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), upHelp)
		flags.PrintDefaults()
	}
	flags.StringVar(&u.dir, "dir", "", "directory for certificates, kubeconfigs, data and logs; made if it is missing (required)")
	names := flags.String("clusters", "infra,tenant", "names of the clusters, separated by commas")
	flags.BoolVar(&u.certManager, "cert-manager", false, "run cert-manager in the cluster infra")
	flags.BoolVar(&u.noFsync, "no-fsync", true, "let etcd leave writing to the disk to the system: quick, but a crash of the machine loses data")
	flags.BoolVar(&u.auditLog, "audit-log", false, "have the API server of the cluster infra log writes of Pods with their admission: DIR/logs/infra-audit.log")
	flags.Int64Var(&u.etcdQuota, "etcd-quota-bytes", 0, "size at which etcd takes no more writes; 0 is etcd's own default")
	flags.StringVar(&u.address, "nodes-address", "", "address at which kubelets reach the API servers, which know each Pod's address then; without it, kwok lets Nodes and Pods run")
	untilEOF := flags.Bool("until-stdin-eof", false, "end when standard input ends, which it does with whoever holds its other end")
	_ = flags.Parse(os.Args[1:])
	u.names = strings.Split(*names, ",")
	if err := u.check(flags.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "up: %v; see 'controlplane up --help'\n", err)
		return 2
	}

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go watchSignals(cancel)
	go watchParent(ctx, cancel)
	lines := make(chan string, 16)
	// From the start: whoever holds the other end may be gone before we are ready.
	go readLines(os.Stdin, lines, func() {
		if *untilEOF {
			cancel(errTold)
		}
	})

	began := time.Now()
	err := u.prepare()
	for attempt := 1; err == nil; attempt++ {
		err = u.start(ctx)
		if !errors.Is(err, errPortTaken) || attempt == 5 {
			break
		}
		u.stop()
		err = nil
	}
	if err == nil {
		err = u.announce(time.Since(began))
	}
	if err == nil {
		go u.commands(ctx, lines)
		err = u.watch(ctx)
	}
	// First the words, as stopping takes a moment.
	code := u.fail(ctx, err)
	u.stop()
	return code
}

func (u *up) check(arguments []string) error {
	if len(arguments) > 0 {
		return fmt.Errorf("unexpected argument %q", arguments[0])
	}
	if u.dir == "" {
		return errors.New("--dir is required")
	}
	// Names are parts of file names, of etcd keys and of the names of processes.
	valid := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	for i, name := range u.names {
		if !valid.MatchString(name) || name == "etcd" || name == "logs" {
			return fmt.Errorf("--clusters: %q can't be the name of a cluster; use small letters, digits and dashes", name)
		}
		if slices.Contains(u.names[:i], name) {
			return fmt.Errorf("--clusters: %q is there twice", name)
		}
	}
	if u.address != "" && net.ParseIP(u.address) == nil {
		return fmt.Errorf("--nodes-address: %q is no IP address", u.address)
	}
	if u.certManager && !slices.Contains(u.names, "infra") {
		return errors.New("--cert-manager needs a cluster named infra in --clusters")
	}
	return nil
}

// prepare takes the directory and finds the programs.
func (u *up) prepare() error {
	var err error
	if u.dir, err = filepath.Abs(u.dir); err != nil {
		return err
	}
	if u.programs, err = findAssets(); err != nil {
		return err
	}
	if err := os.MkdirAll(u.dir, 0o700); err != nil {
		return err
	}
	return takeDir(u.dir)
}

// takeDir makes sure that a directory is ours alone as long as we run: what is in it from before will be removed.
func takeDir(dir string) error {
	name := filepath.Join(dir, ".controlplane.lock")
	if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) {
		for _, other := range []string{"etcd", "logs"} {
			if _, err := os.Lstat(filepath.Join(dir, other)); err == nil {
				return fmt.Errorf("%s holds %q that is not of a control plane; choose another --dir", dir, other)
			}
		}
	}
	lock, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	// Never closed, so that the lock ends with the process. Children don't inherit it.
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another control plane runs in %s; choose another --dir", dir)
	}
	dirLock = lock
	return nil
}

// dirLock keeps the garbage collector from closing the lock.
var dirLock *os.File

// fail tells what went wrong; an end by a signal is no failure.
func (u *up) fail(ctx context.Context, err error) int {
	if err == nil || errors.Is(context.Cause(ctx), errTold) {
		return 0
	}
	message := map[string]any{"error": err.Error()}
	var ended *endedError
	if errors.As(err, &ended) {
		message["log"] = ended.log
	}
	u.say(message)
	fmt.Fprintln(os.Stderr, "up:", err)
	return 1
}

func watchSignals(cancel context.CancelCauseFunc) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	<-signals
	cancel(errTold)
}

// watchParent ends us when our parent has ended: we are somebody else's child then. A parent-death signal wouldn't do: it
// comes when the parent's *thread* ends, and test programs start us from a thread per test. A parent that ended before we
// could ask for its id is noticed by the end of standard input.
func watchParent(ctx context.Context, cancel context.CancelCauseFunc) {
	for ctx.Err() == nil {
		if os.Getppid() != parent {
			cancel(errTold)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// process names one of the programs of a cluster.
func (u *up) process(cluster, program string, args ...string) *process {
	name := program
	if cluster != "" {
		name = cluster + "/" + program
	}
	return &process{name: name, args: append(u.programs.command(program), args...), dir: u.etcdDir(), log: u.logOf(name)}
}

func (u *up) logOf(name string) string {
	return filepath.Join(u.dir, "logs", strings.ReplaceAll(name, "/", "-")+".log")
}

func (u *up) start(ctx context.Context) error {
	ctx, cancelLimit := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not ready after %s", startLimit))
	defer cancelLimit()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	u.etcd, u.clusters = nil, nil
	// Data and logs of an attempt before would only mislead.
	for _, old := range []string{"etcd", "logs", "state.json"} {
		if err := os.RemoveAll(filepath.Join(u.dir, old)); err != nil {
			return err
		}
	}
	for _, dir := range []string{filepath.Join(u.dir, "logs"), u.etcdDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	u.newEtcd()
	for _, name := range u.names {
		c, err := newCluster(u, name)
		if err != nil {
			return err
		}
		u.clusters = append(u.clusters, c)
	}
	if err := u.starter.start(u.etcd); err != nil {
		return err
	}
	go func() {
		if err := u.watch(ctx); err != nil {
			cancel(err)
		}
	}()
	results := make(chan error, len(u.clusters))
	for _, c := range u.clusters {
		go func() { results <- u.startCluster(ctx, c) }()
	}
	var first error
	for range u.clusters {
		if err := <-results; err != nil && first == nil {
			first = err
			// It ends the wait for the others.
			cancel(err)
		}
	}
	return first
}

// watch returns when a process has ended that should not have, or nil when there is no longer a need to watch.
func (u *up) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		for _, p := range u.all() {
			if err := p.failure(); err != nil {
				return err
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

// all returns every process in the order in which they start, without guests.
func (u *up) all() []*process {
	if u.etcd == nil {
		return nil
	}
	all := []*process{u.etcd}
	for _, c := range u.clusters {
		all = append(all, c.processes...)
	}
	return all
}

// stop takes everything down: clients before servers, so that nothing waits for what is gone.
func (u *up) stop() {
	u.guestsMutex.Lock()
	for _, p := range u.guests {
		p.kill()
	}
	u.guestsMutex.Unlock()
	processes := u.all()
	if len(processes) == 0 {
		return
	}
	slices.Reverse(processes)
	var wait sync.WaitGroup
	for _, p := range processes[:len(processes)-1] {
		// An API server waits for its watchers to go; nobody needs it to.
		deadline := 2 * time.Second
		if strings.HasSuffix(p.name, "/kube-apiserver") {
			deadline = 100 * time.Millisecond
		}
		wait.Go(func() { p.stop(deadline) })
	}
	wait.Wait()
	u.etcd.stop(2 * time.Second)
}

// lowestPort is the first port that servers of tests get.
const lowestPort = 10000

// freePorts returns ports on loopback that nobody uses now. They are below those that the kernel gives to connections: a server that is
// killed and started again would find its port taken by one.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	first := firstDynamicPort()
	if first <= lowestPort {
		return nil, fmt.Errorf("net.ipv4.ip_local_port_range begins with %d: no ports from %d on are below it", first, lowestPort)
	}
	var last error
	for range first - lowestPort {
		if len(ports) == n {
			return ports, nil
		}
		port := lowestPort + rand.IntN(first-lowestPort)
		// Kept open until all are chosen, so that none is chosen twice.
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			last = err
			continue
		}
		defer listener.Close()
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("no free port: %w", last)
}

// firstDynamicPort is the first port that the kernel gives to connections.
func firstDynamicPort() int {
	first := 32768
	if dynamic, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(dynamic), &first)
	}
	return first
}
