package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// process is a child that can't outlive us.
type process struct {
	name string
	args []string
	env  []string
	// dir is its working directory; empty where it is ours.
	dir string
	log string
	// ready is a URL that answers 200 once the child works; empty where nobody can tell.
	ready string

	// mutex guards what follows: commands change it while the watch looks at it.
	mutex sync.Mutex
	cmd   *exec.Cmd
	// exited is closed when the child has ended.
	exited chan struct{}
	// wanted says that its end would be a failure.
	wanted bool
}

// endedError says that a child has ended which should not have.
type endedError struct {
	name, how, log string
	tail           []byte
	portTaken      bool
}

func (e *endedError) Error() string {
	return fmt.Sprintf("%s has ended (%s); its log %s ends with:\n%s", e.name, e.how, e.log, e.tail)
}

// Is tells errors.Is whether the child ended because somebody else got its port first.
func (e *endedError) Is(target error) bool {
	return target == errPortTaken && e.portTaken
}

// starter starts children from one thread that never ends: a parent-death signal is sent when the *thread* that forked
// ends, not the process, and Go ends threads as it likes.
type starter chan func()

func newStarter() starter {
	s := make(starter)
	go func() {
		runtime.LockOSThread()
		for start := range s {
			start()
		}
	}()
	return s
}

func (s starter) start(p *process) error {
	result := make(chan error, 1)
	s <- func() { result <- p.start() }
	return <-result
}

func (p *process) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		// Ctrl-C in a terminal is for us; we take the children down in order.
		Setpgid: true,
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	p.cmd, p.exited, p.wanted = cmd, exited, true
	return nil
}

// pid is the child's, or 0 when there is none.
func (p *process) pid() int {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

func (p *process) running() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.cmd != nil && !closed(p.exited)
}

// failure is nil unless the child has ended and should not have.
func (p *process) failure() error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.wanted || !closed(p.exited) {
		return nil
	}
	return &endedError{
		name: p.name,
		how:  p.cmd.ProcessState.String(),
		log:  p.log,
		tail: tail(p.log, 2000),
		// Much may be said after it.
		portTaken: bytes.Contains(tail(p.log, 64<<10), []byte("address already in use")),
	}
}

// stop ends the child: politely, and after the deadline not.
func (p *process) stop(deadline time.Duration) {
	exited := p.signal(syscall.SIGTERM)
	select {
	case <-exited:
	case <-time.After(deadline):
		p.kill()
	}
}

func (p *process) kill() { <-p.signal(syscall.SIGKILL) }

// killAll ends children: every one has its signal before any of them is waited for.
func killAll(processes []*process) {
	var exited []<-chan struct{}
	for _, p := range processes {
		exited = append(exited, p.signal(syscall.SIGKILL))
	}
	for _, one := range exited {
		<-one
	}
}

// signal tells the child to end, which is no failure from now on. What it returns is closed when the child has ended.
func (p *process) signal(signal syscall.Signal) <-chan struct{} {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.wanted = false
	if p.cmd == nil {
		none := make(chan struct{})
		close(none)
		return none
	}
	// It fails only when the child has ended already.
	_ = p.cmd.Process.Signal(signal)
	return p.exited
}

// pause suspends the child, and returns when every thread of it is suspended.
func (p *process) pause(ctx context.Context) error {
	if err := p.send(syscall.SIGSTOP); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, fmt.Errorf("%s is not suspended after SIGSTOP", p.name))
	defer cancel()
	return poll(ctx, func() error { return suspended(p.pid()) })
}

// resume lets a suspended child go on.
func (p *process) resume() error { return p.send(syscall.SIGCONT) }

// send sends a signal that doesn't end the child.
func (p *process) send(signal syscall.Signal) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.cmd == nil || closed(p.exited) {
		return fmt.Errorf("%s is not running", p.name)
	}
	return p.cmd.Process.Signal(signal)
}

// suspended is nil when all threads of a process are stopped by a signal.
func suspended(pid int) error {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("process %d has ended", pid)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		// The name of the program is in parentheses and may hold anything; the state follows it.
		state := data[bytes.LastIndexByte(data, ')')+1:]
		if !bytes.HasPrefix(state, []byte(" T ")) {
			return fmt.Errorf("%s is in state %.2s", file, state)
		}
	}
	return nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// tail returns the last bytes of a file, or nothing when there is none.
func tail(name string, size int64) []byte {
	file, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer file.Close()
	if _, err := file.Seek(-size, io.SeekEnd); err != nil {
		// It is shorter than that.
		_, _ = file.Seek(0, io.SeekStart)
	}
	data, _ := io.ReadAll(file)
	return data
}
