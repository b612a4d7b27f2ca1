package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is a child that can't outlive us.
type process struct {
	name string
	args []string
	env  []string
	log  string
	cmd  *exec.Cmd
	// exited is closed when the child has ended.
	exited chan struct{}
	// wanted says that its end would be a failure.
	wanted bool
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
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		// Ctrl-C in a terminal is for us; we take the children down in order.
		Setpgid: true,
	}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	p.wanted = true
	exited := make(chan struct{})
	p.exited = exited
	cmd := p.cmd
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	return nil
}

func (p *process) running() bool {
	if p.exited == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// stop ends the child: politely, and after the deadline not.
func (p *process) stop(deadline time.Duration) {
	p.wanted = false
	if !p.running() {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(deadline):
		p.kill()
	}
}

func (p *process) kill() {
	p.wanted = false
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// portTaken says whether the child ended because somebody else got its port first.
func (p *process) portTaken() bool {
	return bytes.Contains(p.tail(64<<10), []byte("address already in use"))
}

// tail returns the last bytes of the child's log.
func (p *process) tail(size int64) []byte {
	file, err := os.Open(p.log)
	if err != nil {
		return nil
	}
	defer file.Close()
	if _, err := file.Seek(-size, io.SeekEnd); err != nil {
		_, _ = file.Seek(0, io.SeekStart)
	}
	data, err := io.ReadAll(file)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return data
}
