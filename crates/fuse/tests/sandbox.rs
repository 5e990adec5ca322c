//! Tests what a confined process can and cannot do.
//!
//! A process cannot leave the sandbox, so the test runs itself in a child process.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use fourscore_sync::thread;
use io_uring::{IoUring, opcode, types};
use rustix::net::{AddressFamily, SocketType};

const INSIDE: &str = "FOURSCORE_TEST_LOCKED";
const SAID: &str = "everything was refused\n";

#[test]
fn a_locked_process_serves_and_does_nothing_else() {
    let folder = std::env::temp_dir().join(format!("fourscore-sandbox-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("file"), b"content").unwrap();
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "inside", "--nocapture"])
        .env(INSIDE, &folder)
        .output()
        .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    let complaint = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}{complaint}");
    assert!(said.contains(SAID), "{said}{complaint}");
}

#[test]
#[ignore = "run by the other test in a child process"]
fn inside() {
    let Some(folder) = std::env::var_os(INSIDE).map(std::path::PathBuf::from) else {
        return;
    };
    let path = folder.join("file");
    let mut file = File::options().read(true).write(true).open(&path).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp_address = tcp.local_addr().unwrap();
    let unix = folder.join("socket");
    let _listener = UnixListener::bind(&unix).unwrap();
    let unconnected = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let mut ring = IoUring::new(8).unwrap();
    let mut page = File::open("/dev/fuse").unwrap();

    let parent = rustix::process::getppid().unwrap();
    let enclosed = fourscore_fuse::sandbox::enclose().unwrap();
    // The first step, before an image is read.
    refused(File::open(&path), &[ErrorKind::PermissionDenied]);
    File::open("/sys/devices/system/cpu/online").unwrap();
    File::open("/dev/fuse").unwrap();
    refused(
        TcpStream::connect(tcp_address),
        &[ErrorKind::PermissionDenied],
    );
    enclosed.lock().unwrap();

    // Allowed: serving.
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
    file.write_all(b"more").unwrap();
    file.sync_all().unwrap();
    // Fails, but not for the sandbox: there is no mount for this descriptor.
    page.read(&mut [0; 8192]).unwrap_err();
    assert_eq!(thread::spawn(|| 7).join().unwrap(), 7);
    thread::sleep(Duration::from_millis(1));
    drop(vec![1_u8; 64 << 20]);

    // Denied: everything else.
    let denied = [ErrorKind::PermissionDenied];
    refused(File::open(&path), &denied);
    refused(File::open("/dev/fuse"), &denied);
    refused(File::open("/sys/devices/system/cpu/online"), &denied);
    refused(File::create(folder.join("new")), &denied);
    refused(std::fs::remove_file(&path), &denied);
    refused(std::fs::metadata("/etc/passwd"), &denied);
    refused(std::fs::read_dir("/"), &denied);
    refused(TcpStream::connect(tcp_address), &denied);
    refused(UdpSocket::bind("127.0.0.1:0"), &denied);
    refused(UnixStream::connect(&unix), &denied);
    refused(UnixStream::pair(), &denied);
    refused(Command::new("/bin/true").status(), &denied);
    refused(IoUring::new(8), &denied);
    refused(
        rustix::process::kill_process(parent, rustix::process::Signal::HUP)
            .map_err(std::io::Error::from),
        &denied,
    );
    // A ring that was made before, and not restricted.
    let name = c"/etc/passwd";
    let open = opcode::OpenAt::new(types::Fd(rustix::fs::CWD.as_raw_fd()), name.as_ptr());
    in_ring(&mut ring, &open.build());
    let address = rustix::net::SocketAddrAny::from(tcp_address);
    let connect = opcode::Connect::new(
        types::Fd(unconnected.as_raw_fd()),
        address.as_ptr().cast(),
        address.addr_len(),
    );
    in_ring(&mut ring, &connect.build());
    print!("{SAID}");
}

#[track_caller]
fn refused<T>(result: std::io::Result<T>, kinds: &[ErrorKind]) {
    let error = result.err().expect("it is refused");
    assert!(kinds.contains(&error.kind()), "{error}");
}

#[track_caller]
fn in_ring(ring: &mut IoUring, entry: &io_uring::squeue::Entry) {
    // SAFETY: the memory of the entry outlives the call, which waits for its completion.
    unsafe { ring.submission().push(entry) }.unwrap();
    ring.submit_and_wait(1).unwrap();
    let result = ring.completion().next().unwrap().result();
    assert_eq!(result, -rustix::io::Errno::ACCESS.raw_os_error());
}
