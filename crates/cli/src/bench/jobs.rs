//! Cases that several processes compute at once.
//!
//! The kernels of a device are compiled one after the other in a process, so threads would wait for each other. With
//! `--jobs` the program starts itself several times as a worker, which reads jobs from standard input and writes their
//! rows to standard output, one line of JSON each. The first process draws all problems, counts and prints, in the order
//! in which it gave the jobs away. So the output does not depend on the number of workers, or on which is faster.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::{env, thread};

use serde::{Deserialize, Serialize};
use windowpane::Device;

use super::case::Case;
use super::row;
use super::verify::{Computed, Verify};
use crate::failure::Failure;
use crate::progress::say;

/// One problem for a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// The position of its device among those that the command line names.
    pub(super) device: usize,
    /// The same problem by one kernel after the other.
    pub(super) cases: Vec<Case>,
}

/// Computes jobs in this process, or in several others.
pub(super) struct Workers<'a> {
    verify: &'a Verify,
    devices: &'a [Device],
    processes: Vec<Process>,
    answers: Receiver<Answer>,
    /// The jobs whose rows were not returned yet, in order.
    queue: VecDeque<Given>,
    /// Whether the last job of the queue lost its device, which ends the run.
    is_over: bool,
}

/// A worker.
struct Process {
    child: Child,
    jobs: ChildStdin,
    is_idle: bool,
}

/// A line of the worker with this number; none if it has ended.
type Answer = (usize, Option<String>);

/// A job, its worker, and its result if it has one.
struct Given {
    job: Job,
    worker: usize,
    computed: Option<Computed>,
}

impl<'a> Workers<'a> {
    /// Starts this many workers; with one, this process computes.
    pub(super) fn start(
        verify: &'a Verify,
        devices: &'a [Device],
        workers: usize,
    ) -> Result<Self, Failure> {
        let (sender, answers) = mpsc::channel();
        let others = if workers > 1 { workers } else { 0 };
        let processes = (0..others).map(|worker| Process::start(worker, sender.clone()));
        let processes = processes.collect::<io::Result<_>>().map_err(|error| {
            Failure::Failed(format!("a process for --jobs does not start: {error}"))
        })?;
        Ok(Self { verify, devices, processes, answers, queue: VecDeque::new(), is_over: false })
    }

    /// Gives a job to a worker, once one is free. Returns the jobs that are done by now, in order.
    pub(super) fn give(&mut self, job: Job) -> Result<Vec<(Job, Computed)>, Failure> {
        if self.processes.is_empty() {
            let computed = self.verify.compute(&self.devices[job.device], &job.cases);
            return Ok(vec![(job, computed)]);
        }
        let worker = loop {
            match self.processes.iter().position(|process| process.is_idle) {
                _ if self.is_over => return self.finish(),
                Some(worker) => break worker,
                None => self.wait()?,
            }
        };
        let process = &mut self.processes[worker];
        process.is_idle = false;
        // A worker that has ended does not read it, and its answer says so.
        let _ = writeln!(process.jobs, "{}", row::json(&job)?);
        self.queue.push_back(Given { job, worker, computed: None });
        Ok(self.done())
    }

    /// Waits for all jobs, and returns those that were not returned yet.
    pub(super) fn finish(&mut self) -> Result<Vec<(Job, Computed)>, Failure> {
        while self.queue.iter().any(|given| given.computed.is_none()) {
            self.wait()?;
        }
        Ok(self.done())
    }

    fn done(&mut self) -> Vec<(Job, Computed)> {
        let is_done = |given: &Given| given.computed.is_some();
        let done = self.queue.iter().take_while(|given| is_done(given)).count();
        let done = self.queue.drain(..done);
        done.filter_map(|given| Some((given.job, given.computed?))).collect()
    }

    /// Waits for a worker's answer.
    fn wait(&mut self) -> Result<(), Failure> {
        let bug = |what: &str| Failure::Bug(format!("a process for --jobs {what}"));
        let (worker, line) = self.answers.recv().map_err(|_| bug("does not answer"))?;
        let of_worker = |given: &Given| given.worker == worker && given.computed.is_none();
        let Some(position) = self.queue.iter().position(of_worker) else {
            // A job after the one that ends the run.
            return if self.is_over { Ok(()) } else { Err(bug("has ended without a job")) };
        };
        let (given, process) = (&mut self.queue[position], &mut self.processes[worker]);
        let computed = match line {
            Some(line) => {
                serde_json::from_str(&line).map_err(|_| bug(&format!("answers `{line}`")))?
            }
            None => {
                let end =
                    process.child.wait().map_or("in an unknown way".into(), |it| it.to_string());
                let error = format!("the process that computed it has ended: {end}");
                Computed::lost(&given.job.cases[0], &self.devices[given.job.device], error)
            }
        };
        process.is_idle = true;
        if computed.is_lost {
            self.is_over = true;
            self.queue.truncate(position + 1);
        }
        self.queue[position].computed = Some(computed);
        Ok(())
    }
}

impl Drop for Workers<'_> {
    /// Ends the workers. If a run ends early, some still compute what nobody will read.
    fn drop(&mut self) {
        for Process { child, .. } in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Process {
    /// Starts this program with its own arguments, as a worker.
    fn start(number: usize, answers: Sender<Answer>) -> io::Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(env::args_os().skip(1))
            .arg("--worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(jobs), Some(lines)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are piped")
        };
        thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                let _ = answers.send((number, Some(line)));
            }
            let _ = answers.send((number, None));
        });
        Ok(Self { child, jobs, is_idle: true })
    }
}

/// What a worker does: it computes the jobs of standard input until that ends.
pub(super) fn work(verify: &Verify, devices: &[Device]) -> Result<(), Failure> {
    for line in io::stdin().lines() {
        let line = line.map_err(|error| Failure::Failed(format!("no job can be read: {error}")))?;
        let job: Job = serde_json::from_str(&line)
            .map_err(|error| Failure::Failed(format!("`{line}` is not a job: {error}")))?;
        let Some(device) = devices.get(job.device) else { continue };
        say(row::json(&verify.compute(device, &job.cases))?)?;
    }
    Ok(())
}
