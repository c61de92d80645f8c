//! The process in an importer pod. Knows its job from a variable, answers about itself on a port, and ends with 0 or a verdict.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrovirt_api::chain;
use ferrovirt_disks::clone::clone_file;
use ferrovirt_disks::containerdisk::find_disk;
use ferrovirt_disks::image::{FileSource, ImportError, Options, Target, import};
use ferrovirt_fetch::http::{Client, HttpError, Trust};
use ferrovirt_fetch::web::{WebSource, parse_header};
use ferrovirt_serve::{Guest, Handler, Limits, Peer, Reception};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::job::{self, CLONE_PORT, DISK_PATH, From, Job, PORT, UPLOAD_OFFSET, UPLOAD_PORT, Verdict, paths};
use crate::pass::{self, PassError};
use crate::receive::{Answer, Uploads};
use crate::show::{Body, Shown, full};
use crate::transfer::{Board, Place, fetch};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the image cannot be used")]
    Disk(#[from] ferrovirt_disks::containerdisk::DiskError),
    #[error(transparent)]
    Pass(#[from] PassError),
    #[error("the job is not understood")]
    Job(#[from] serde_json::Error),
    #[error("cannot {what}")]
    Io { what: &'static str, source: io::Error },
}

impl Failure {
    fn reason(&self) -> &'static str {
        match self {
            Self::Import(error) => error.reason(),
            Self::Http(_) => "SourceRefused",
            Self::Disk(_) => "NoDiskInImage",
            Self::Job(_) => "InvalidJob",
            Self::Io { .. } | Self::Pass(_) => "ImporterFailed",
        }
    }

    fn is_transient(&self) -> bool {
        match self {
            Self::Import(error) => error.is_transient(),
            Self::Http(error) => error.is_transient(),
            _ => false,
        }
    }
}

/// Does the job of this pod. Answers the exit code.
pub async fn run() -> u8 {
    match work().await {
        Ok(()) => 0,
        Err(error) => {
            let verdict = Verdict { reason: error.reason().to_owned(), message: chain(&error) };
            // The last line is what the controller reads.
            eprintln!("{}", serde_json::to_string(&verdict).unwrap_or_default());
            1
        }
    }
}

async fn work() -> Result<(), Failure> {
    let text = std::env::var(job::VARIABLE).unwrap_or_default();
    let job: Job = serde_json::from_str(&text)?;
    let board = Arc::new(Board::default());
    let (finished, mut upload_done) = watch::channel(false);
    let place = Arc::new(place(&job));
    let upload = match &job.from {
        From::Upload { key, claim, .. } => Some(Uploads {
            key: key.clone(),
            claim: claim.clone(),
            place: place.clone(),
            board: board.clone(),
            finished,
            session: tokio::sync::Mutex::default(),
        }),
        _ => None,
    };
    let shown = match &job.from {
        From::Serve { block } => {
            let wrap = |source| Failure::Io { what: "open the claim to be cloned", source };
            let token = pass::token(Path::new(paths::SECRET))?;
            Some(Shown::open(&source_disk(*block), &token).map_err(wrap)?)
        }
        _ => None,
    };
    // Who is asked how far it is, and answers, takes uploads already.
    if let Some(upload) = upload {
        let tls = pass::server(Path::new(paths::SECRET))?;
        listen(UPLOAD_PORT, Arc::new(Server::Uploads(upload)), Some(tls)).await?;
    }
    listen(PORT, Arc::new(Server::Progress(board.clone())), None).await?;
    if let Some(shown) = shown {
        let tls = pass::server(Path::new(paths::SECRET))?;
        listen(CLONE_PORT, Arc::new(Server::Disk(shown)), Some(tls)).await?;
        // Until somebody ends it, who knows that the clone is done.
        std::future::pending::<()>().await;
    }
    if matches!(job.from, From::Upload { .. }) {
        let _ = upload_done.wait_for(|done| *done).await;
        return Ok(());
    }
    let mut pause = FIRST_PAUSE;
    loop {
        let before = board.read().done;
        let Err(error) = attempt(&job, &place, &board).await else { return Ok(()) };
        if !error.is_transient() {
            place.clean();
            return Err(error);
        }
        let text = chain(&error);
        tracing::warn!(error = text, "the transfer broke; trying again");
        board.change(|progress| {
            progress.restarts += 1;
            progress.trouble = text;
        });
        if board.read().done > before {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

fn place(job: &Job) -> Place {
    let directory = (!job.block).then(|| PathBuf::from(paths::TARGET));
    let disk = match &directory {
        Some(directory) => directory.join(paths::DISK),
        None => PathBuf::from(paths::TARGET_DEVICE),
    };
    let (cache, scratch) = (job.cache.then_some(paths::CACHE), job.scratch.then_some(paths::SCRATCH));
    Place { disk, directory, size: job.size, cache: cache.map(PathBuf::from), scratch: scratch.map(PathBuf::from) }
}

async fn attempt(job: &Job, place: &Arc<Place>, board: &Arc<Board>) -> Result<(), Failure> {
    let (place, board, job) = (place.clone(), board.clone(), job.clone());
    let source = match &job.from {
        From::Http { .. } => Some(open_web(&job.from).await?),
        From::Clone { url } => Some(open_clone(url).await?),
        _ => None,
    };
    let done = tokio::task::spawn_blocking(move || match (&job.from, source) {
        (From::Clone { .. }, Some(source)) => {
            // It is a disk, whatever it looks like.
            let options = Options { verbatim: true, ..place.options() };
            Ok(fetch(&source, None, &place, options, &board)?)
        }
        (From::Http { url, checksum, .. }, Some(source)) => {
            let mut options = place.options();
            if !checksum.is_empty() {
                options.checksum = Some(checksum.parse()?);
            }
            let facts = source.facts();
            // Without a mark of its content nothing can be said to be the same as before.
            let identity = facts.validator.as_ref().map(|mark| format!("{url}\n{mark}\n{:?}", facts.length));
            Ok(fetch(&source, identity.as_deref(), &place, options, &board)?)
        }
        (From::Image, _) => {
            let disk = find_disk(Path::new(paths::IMAGE), None)?;
            let source =
                FileSource::open(&disk).map_err(|source| Failure::Io { what: "open the disk of the image", source })?;
            Ok(fetch(&source, None, &place, place.options(), &board)?)
        }
        (From::Claim { block }, _) => copy_claim(*block, &place, &board),
        _ => {
            let target = place.open()?;
            target.clear()?;
            Ok(target.sync()?)
        }
    });
    match done.await {
        Ok(result) => result,
        Err(error) => Err(Failure::Io { what: "finish the work", source: io::Error::other(error) }),
    }
}

async fn open_clone(url: &str) -> Result<WebSource, Failure> {
    let secret = Path::new(paths::SECRET);
    let client = Client::with_tls(pass::client(secret)?).without_redirects();
    let mut sent = HeaderMap::new();
    let bearer = HeaderValue::from_str(&format!("Bearer {}", pass::token(secret)?)).ok();
    sent.extend(bearer.map(|value| (Some(AUTHORIZATION), value)));
    Ok(WebSource::open(client, url, sent).await?)
}

async fn open_web(from: &From) -> Result<WebSource, Failure> {
    let From::Http { url, headers, insecure, login, certificates, .. } = from else {
        return Err(HttpError::BadUrl(String::new()).into());
    };
    let mut sent = HeaderMap::new();
    sent.extend(headers.iter().filter_map(|line| parse_header(line)).map(|(name, value)| (Some(name), value)));
    if *login {
        let part = |name: &str| {
            let path = Path::new(paths::SECRET).join(name);
            fs::read_to_string(path).map_err(|source| Failure::Io { what: "read the secret of the source", source })
        };
        let pair = format!("{}:{}", part("accessKeyId")?.trim(), part("secretKey")?.trim());
        let basic = ferrovirt_fetch::http::basic(&pair);
        sent.extend(HeaderValue::from_str(&basic).ok().map(|value| (Some(AUTHORIZATION), value)));
    }
    let mut trust = Trust { insecure: *insecure, ..Trust::default() };
    if *certificates {
        let entries = fs::read_dir(paths::CERTIFICATES);
        let entries = entries.map_err(|source| Failure::Io { what: "read the certificates of the source", source })?;
        trust.extra_pem = entries.flatten().filter_map(|entry| fs::read(entry.path()).ok()).collect();
    }
    Ok(WebSource::open(Client::new(&trust)?, url, sent).await?)
}

fn copy_claim(block: bool, place: &Place, board: &Board) -> Result<(), Failure> {
    let path = source_disk(block);
    let target = place.open()?;
    if !block && !path.exists() {
        // A file system that no machine has used yet.
        target.clear()?;
        return Ok(target.sync()?);
    }
    let wrap = |source| Failure::Io { what: "open the claim to be cloned", source };
    let source = File::open(&path).map_err(wrap)?;
    let metadata = source.metadata().map_err(wrap)?;
    let both_files = metadata.is_file() && target.handle().metadata().map_err(wrap)?.is_file();
    if !both_files {
        return Ok(import_raw(&FileSource::open(&path).map_err(wrap)?, &target, board)?);
    }
    if metadata.len() > target.size() {
        return Err(ImportError::TooLarge { image: metadata.len(), disk: target.size() }.into());
    }
    let length = metadata.len();
    let copied = clone_file(&source, target.handle(), |at| board.reach(at, Some(length)));
    let copied = copied.map_err(|source| Failure::Io { what: "copy the disk", source })?;
    tracing::info!(?copied, "cloned");
    target.fit()?;
    Ok(target.sync()?)
}

fn import_raw(source: &FileSource, target: &Target, board: &Board) -> Result<(), ImportError> {
    struct Tell<'a>(&'a Board);
    impl ferrovirt_disks::image::Observer for Tell<'_> {
        fn progress(&self, done: u64, total: Option<u64>) {
            self.0.reach(done, total);
        }
    }
    import(source, target, &Options { verbatim: true, ..Options::default() }, &Tell(board))
}

/// What is answered on a port.
enum Server {
    Progress(Arc<Board>),
    Uploads(Uploads),
    Disk(Shown),
}

/// Where a claim that is cloned is mounted.
fn source_disk(block: bool) -> PathBuf {
    match block {
        true => PathBuf::from(paths::SOURCE_DEVICE),
        false => Path::new(paths::SOURCE).join(paths::DISK),
    }
}

async fn listen(port: u16, server: Arc<Server>, tls: Option<Arc<rustls::ServerConfig>>) -> Result<(), Failure> {
    let wrap = |source| Failure::Io { what: "listen for those who ask", source };
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await.map_err(wrap)?;
    // Few have something to ask here, and those who upload or clone say who they are.
    let limits = Limits { strangers: 48, ..Limits::new(64, 0.25) };
    let receive = move || reception(server.clone(), tls.clone());
    tokio::spawn(ferrovirt_serve::serve(listener, limits, receive, CancellationToken::new(), std::future::pending()));
    Ok(())
}

fn reception(server: Arc<Server>, tls: Option<Arc<rustls::ServerConfig>>) -> Reception {
    let meet = move |_: Peer| -> Option<Handler> {
        Some(Box::new(move |request| {
            let server = server.clone();
            // A client that hangs up must not leave an upload half given up.
            let answered = tokio::spawn(async move { answer(&server, request).await });
            Box::pin(async move {
                let response = answered.await.unwrap_or_else(|error| {
                    let mut response = Response::new(full(format!("{error}\n")));
                    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                    response
                });
                response.map(|body| body.map_err(Into::into).boxed_unsync())
            })
        }))
    };
    Reception { tls, meet: Box::new(meet) }
}

async fn answer(server: &Server, request: Request<Incoming>) -> Response<Body> {
    let plain = |code, text: String| Answer { code, text, offset: None };
    let nothing = || plain(StatusCode::NOT_FOUND, "there is nothing here\n".to_owned());
    let path = request.uri().path();
    let told = match (server, request.method()) {
        (Server::Disk(shown), &Method::GET | &Method::HEAD) if path == DISK_PATH => {
            let response = shown.answer(request.headers());
            if response.status().is_success() {
                // A whole disk takes its time.
                request.extensions().get::<Guest>().map(|guest| guest.known("disk"));
            }
            return response;
        }
        (Server::Progress(board), &Method::GET) if path == "/progress" => {
            plain(StatusCode::OK, serde_json::to_string(&board.read()).unwrap_or_default())
        }
        (Server::Uploads(uploads), &Method::HEAD | &Method::POST | &Method::PUT)
            if path.starts_with("/v1beta1/upload") =>
        {
            uploads.take(request).await
        }
        _ => nothing(),
    };
    let mut response = Response::new(full(told.text));
    *response.status_mut() = told.code;
    response.headers_mut().extend(told.offset.map(|offset| (HeaderName::from_static(UPLOAD_OFFSET), offset.into())));
    response
}
